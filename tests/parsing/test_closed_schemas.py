"""Test that tool schemas exclude unlisted properties where possible."""

from __future__ import annotations

from typing import Any

from paceline.parsing.closed_schemas import closed_schema
from paceline.parsing.tools import tool_use

ONE: Any = {"properties": {"a": {"enum": [1]}}, "required": ["a"]}


def is_closed(schema: Any) -> bool:
    return schema.get("additionalProperties") is False


def test_nested_objects_and_unions_are_closed() -> None:
    schema = {"properties": {"x": {"anyOf": [ONE, {"type": "null"}]}, "y": {"items": ONE}}}
    found = closed_schema(schema)
    assert is_closed(found)
    assert is_closed(found["properties"]["x"]["anyOf"][0])
    assert is_closed(found["properties"]["y"]["items"])
    assert "additionalProperties" not in schema


def test_some_objects_stay_open() -> None:
    """Closing these would exclude valid objects."""
    unlisted = {"properties": {"a": {}}, "required": ["a", "b"]}
    given = {"properties": {"a": {}}, "additionalProperties": {"type": "integer"}}
    free = {"type": "object"}
    untagged: Any = {"oneOf": [{"properties": {"a": {}}}, {"properties": {"b": {}}}]}
    schema = {"properties": {"u": unlisted, "g": given, "f": free, "o": untagged}}
    assert closed_schema(schema)["properties"] == schema["properties"]


def test_tagged_alternatives_are_closed() -> None:
    def branch(tag: str) -> Any:
        return {"properties": {"kind": {"const": tag}}, "required": ["kind"]}

    for tags, closes in ((("a", "b"), True), (("a", "a"), False)):
        found = closed_schema({"oneOf": [branch(tag) for tag in tags]})
        assert all(is_closed(each) == closes for each in found["oneOf"])


def test_definitions_are_closed_unless_they_are_combined() -> None:
    definitions = {"A": ONE, "B": ONE}
    schema = {
        "$defs": definitions,
        "properties": {
            "x": {"allOf": [{"$ref": "#/$defs/A"}, {"properties": {"b": {}}}]},
            "y": {"allOf": [{"$ref": "#/$defs/B"}]},
        },
    }
    found = closed_schema(schema)
    assert not is_closed(found["$defs"]["A"])
    assert is_closed(found["$defs"]["B"])


def test_functions_without_arguments_have_closed_schemas() -> None:
    for parameters in (None, {}, {"type": "object"}, {"description": "Nothing."}):
        function = {"name": "f", "parameters": parameters}
        (tool,) = tool_use([{"type": "function", "function": function}]).tools
        assert tool.parameters["properties"] == {}
        assert is_closed(closed_schema(tool.parameters))
