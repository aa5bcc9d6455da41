"""Random JSON schemas of function arguments, and a check of values under them."""

from __future__ import annotations

import random
from typing import Any

NAMES = ("city", "days", "Größe", "日付", "unit", "tags", "user_id", "price", "is_open", "note")
WORDS = ["rot", "grün", "青", "a b", 'q"', "back\\slash", "🙂", 3, -1.5, None, True]
KINDS = ("enum", "const", "integer", "number", "boolean", "string", "union", "reference")
NESTED = ("object", "array")
NUMBER = {"anyOf": [{"type": "integer", "minimum": -20, "maximum": 20}, {"type": "null"}]}


def random_schema(rng: random.Random, depth: int = 2) -> dict[str, Any]:
    """Return the schema of an object with nested values, unions, references and Unicode."""
    schema = _object(rng, depth)
    return {**schema, "$defs": {"level": {"enum": ["low", "höchste"]}}}


def _object(rng: random.Random, depth: int) -> dict[str, Any]:
    names = rng.sample(NAMES, rng.randint(1, 3))
    properties = {name: _value(rng, depth) for name in names}
    required = [name for name in names if rng.random() < 0.8]
    return {"type": "object", "properties": properties, "required": required}


def _value(rng: random.Random, depth: int) -> dict[str, Any]:
    kind = rng.choice(KINDS + NESTED * (depth > 0))
    match kind:
        case "enum":
            return {"enum": rng.sample(WORDS, 3)}
        case "const":
            return {"const": rng.choice(WORDS)}
        case "object":
            return _object(rng, depth - 1)
        case "array":
            return {"type": "array", "items": _value(rng, depth - 1), "maxItems": 2}
        case "integer":
            return {"type": "integer", "minimum": 0, "maximum": 999}
        case "number":
            return {"type": "number", "minimum": 0, "maximum": 10, "multipleOf": 0.25}
        case "string":
            return {"type": "string", "maxLength": 8}
        case "union":
            return NUMBER
        case "reference":
            return {"$ref": "#/$defs/level"}
        case _:
            return {"type": "boolean"}


def matches(value: Any, schema: dict[str, Any], defs: dict[str, Any] | None = None) -> bool:
    """Return whether a value is valid under a schema of this module."""
    defs = schema.get("$defs", {}) if defs is None else defs
    if "$ref" in schema:
        return matches(value, defs[schema["$ref"].rpartition("/")[2]], defs)
    if "anyOf" in schema:
        return any(matches(value, choice, defs) for choice in schema["anyOf"])
    if "enum" in schema or "const" in schema:
        allowed = schema.get("enum", [schema.get("const")])
        return any(type(value) is type(each) and value == each for each in allowed)
    match schema["type"]:
        case "object":
            return _is_object(value, schema, defs)
        case "array":
            is_short = isinstance(value, list) and len(value) <= schema["maxItems"]
            return is_short and all(matches(item, schema["items"], defs) for item in value)
        case "string":
            return isinstance(value, str) and len(value) <= schema["maxLength"]
        case "boolean":
            return isinstance(value, bool)
        case "null":
            return value is None
    return _is_number(value, schema)


def _is_object(value: Any, schema: dict[str, Any], defs: dict[str, Any]) -> bool:
    properties = schema["properties"]
    return (
        isinstance(value, dict)
        and set(schema["required"]) <= value.keys() <= properties.keys()
        and all(matches(item, properties[name], defs) for name, item in value.items())
    )


def _is_number(value: Any, schema: dict[str, Any]) -> bool:
    types: tuple[type, ...] = (int, float) if schema["type"] == "number" else (int,)
    return (
        isinstance(value, types)
        and not isinstance(value, bool)
        and schema["minimum"] <= value <= schema["maximum"]
        and value % schema.get("multipleOf", 1) == 0
    )
