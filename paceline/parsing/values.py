"""Convert argument values to JSON text if the tool-call format does not use JSON."""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from typing import Any

_WORDS = {"true": True, "false": False, "null": None}


def types_of(schema: Mapping[str, Any] | None) -> frozenset[str]:
    """Return the JSON types that a schema names; an empty set if it names none."""
    if not isinstance(schema, Mapping):
        return frozenset()
    named = schema.get("type")
    types = {named} if isinstance(named, str) else set(named) if isinstance(named, list) else set()
    if not types and isinstance(schema.get("enum"), list):
        types = {"string" if isinstance(value, str) else "other" for value in schema["enum"]}
    for union in ("anyOf", "oneOf"):
        for choice in schema.get(union) or ():
            types |= types_of(choice)
    return frozenset(types)


def is_text_only(schema: Mapping[str, Any] | None) -> bool:
    """Return whether a schema allows only strings.

    Some tool-call formats omit the quotes around such values.
    """
    return types_of(schema) == {"string"}


def property_schema(schema: Mapping[str, Any] | None, name: str) -> Mapping[str, Any] | None:
    """Return the schema of one argument; None if the tool's schema does not list it."""
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    described = properties.get(name) if isinstance(properties, Mapping) else None
    return described if isinstance(described, Mapping) else None


def json_of(value: Any) -> str:
    """Return a value as JSON text, with non-ASCII characters unescaped."""
    return json.dumps(value, ensure_ascii=False)


def untyped_json(text: str) -> str:
    """Convert a JSON value, a Python literal or plain text to JSON text."""
    stripped = text.strip()
    try:
        json.loads(stripped)
        return stripped
    except ValueError:
        pass
    try:
        return json_of(_literal(ast.parse(stripped, mode="eval").body))
    except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError):
        return json_of(text)


def _literal(node: ast.expr) -> Any:
    """Evaluate a Python literal, which may also contain JSON's true, false and null."""
    match node:
        case ast.Name(id=word) if word in _WORDS:
            return _WORDS[word]
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return [_literal(item) for item in items]
        case ast.Dict(keys=keys, values=values):
            return {
                str(_literal(key)): _literal(value)
                for key, value in zip(keys, values, strict=True)
                if key is not None
            }
        case _:
            return ast.literal_eval(node)
