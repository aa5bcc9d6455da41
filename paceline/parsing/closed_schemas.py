"""Forbid properties that a JSON schema does not list."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

# Keywords that can allow more properties than `properties` lists.
_COMBINED = ("allOf", "anyOf", "oneOf", "$ref", "patternProperties", "unevaluatedProperties")
_NAMED = ("properties", "$defs", "definitions")
_DEFINITIONS = ("$defs", "definitions")


def closed_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of a JSON schema that forbids properties it does not list.

    An object's schema stays open if it sets `additionalProperties`, requires a property that it
    does not list, or is combined with other schemas through `allOf`.
    """
    combined = frozenset(_combined_references(schema))
    result: dict[str, Any] = _closed(schema, combined)
    for name in _DEFINITIONS:
        definitions = schema.get(name)
        if isinstance(definitions, Mapping):
            result[name] = {
                key: _closed(value, combined, is_open=f"#/{name}/{key}" in combined)
                for key, value in definitions.items()
            }
    return result


def _closed(schema: Any, combined: frozenset[str], is_open: bool = False) -> Any:
    """Forbid unlisted properties in a schema and in its subschemas.

    Args:
        schema: JSON schema, or any other value, which is returned unchanged.
        combined: References that `allOf` combines with other schemas.
        is_open: Whether the outermost object may have unlisted properties.
    """
    if not isinstance(schema, Mapping):
        return schema
    result: dict[str, Any] = dict(schema)
    for name in _NAMED:
        if isinstance(result.get(name), Mapping):
            result[name] = {key: _closed(value, combined) for key, value in result[name].items()}
    if isinstance(result.get("items"), Mapping):
        result["items"] = _closed(result["items"], combined)
    closes = {"anyOf": True, "oneOf": _have_tags(result.get("oneOf")), "allOf": False}
    for name, closes_branches in closes.items():
        if isinstance(result.get(name), Sequence):
            stays_open = not closes_branches or "properties" in result
            result[name] = [_closed(value, combined, stays_open) for value in result[name]]
    if not is_open and _lists_all(result):
        result.setdefault("additionalProperties", False)
    return result


def _lists_all(schema: Mapping[str, Any]) -> bool:
    """Return whether `properties` lists every property that the schema requires."""
    properties, required = schema.get("properties"), schema.get("required", ())
    return (
        isinstance(properties, Mapping)
        and isinstance(required, Sequence)
        and set(map(str, required)) <= properties.keys()
        and not any(name in schema for name in _COMBINED)
    )


def _have_tags(branches: Any) -> bool:
    """Return whether a required property has a different constant in each branch."""
    if not isinstance(branches, Sequence) or not all(isinstance(b, Mapping) for b in branches):
        return False
    tags = [
        {(name, str(value["const"])) for name, value in _properties(branch) if "const" in value}
        for branch in branches
    ]
    names = [{name for name, _ in each} for each in tags]
    shared: set[str] = set.intersection(*names) if names else set()
    return any(
        len({tag for each in tags for tag in each if tag[0] == name}) == len(branches)
        and all(name in branch.get("required", ()) for branch in branches)
        for name in shared
    )


def _properties(schema: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    properties = schema.get("properties")
    for name, value in properties.items() if isinstance(properties, Mapping) else ():
        if isinstance(value, Mapping):
            yield name, value


def _combined_references(schema: Any) -> Iterator[str]:
    """Yield each `$ref` that `allOf` combines with other schemas or properties."""
    if isinstance(schema, Mapping):
        branches = schema.get("allOf")
        if isinstance(branches, Sequence) and (len(branches) > 1 or "properties" in schema):
            yield from (str(each["$ref"]) for each in branches if _is_reference(each))
        for value in schema.values():
            yield from _combined_references(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from _combined_references(value)


def _is_reference(schema: Any) -> bool:
    return isinstance(schema, Mapping) and "$ref" in schema
