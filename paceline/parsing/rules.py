"""Write grammars of answers in llguidance's dialect of Lark."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

# As Python's json.dumps and the filter tojson of chat templates write JSON. With fixed separators,
# the next key is the only continuation after each value.
_SEPARATORS = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
_COMBINED = ("allOf", "anyOf", "oneOf", "$ref", "patternProperties", "unevaluatedProperties")
_NESTED = ("properties", "$defs", "definitions")


class RuleWriter:
    """Collects the rules of a grammar.

    Args:
        special: Ids of the tokenizer's special tokens, by text. A grammar refers to these tokens
            by id, because they are not text.
    """

    def __init__(self, special: Mapping[str, int]) -> None:
        self._special = special
        ordered = sorted(special, key=len, reverse=True)
        self._pattern = (
            re.compile("(" + "|".join(map(re.escape, ordered)) + ")") if special else None
        )
        self._rules: list[str] = []

    def literal(self, text: str) -> str:
        """Return the expression for a literal, which may contain special tokens."""
        parts = [text] if self._pattern is None else self._pattern.split(text)
        return " ".join(
            f"<[{self._special[part]}]>"
            if part in self._special
            else json.dumps(part, ensure_ascii=False)
            for part in parts
            if part
        )

    def rule(self, expression: str) -> str:
        """Add a rule, and return its name."""
        name = f"part_{len(self._rules)}"
        self._rules.append(f"{name}: {expression}")
        return name

    def json(self, schema: Mapping[str, Any]) -> str:
        """Add a rule for JSON under a schema, with fixed separators; return its name.

        Objects may have only the properties listed in their schema, unless the schema states
        otherwise.
        """
        closed = {**_closed(schema), "x-guidance": _SEPARATORS}
        return self.rule("%json " + json.dumps(closed, ensure_ascii=False))

    def text_until(self, end: str) -> str:
        """Add a rule for text that ends with a literal; return its name."""
        if any(end.startswith(token) for token in self._special):
            return self.rule(f"/(.|\\n)*/ {self.literal(end)}")
        name = f"part_{len(self._rules)}"
        self._rules.append(f"{name}[suffix={json.dumps(end, ensure_ascii=False)}]: /(.|\\n)*/")
        return name

    def text_without(self, literal: str) -> str:
        """Add a rule for text that does not contain a literal; return its name."""
        if any(literal.startswith(token) for token in self._special):
            return self.rule("/(.|\\n)*/")
        quoted = re.escape(literal).replace("/", "\\/")
        name = f"TEXT_{len(self._rules)}"
        self._rules.append(f"{name}: /(?s:.*)/ & ~/(?s:.*){quoted}(?s:.*)/")
        return name

    def grammar(self, start: str) -> str:
        """Return the grammar for answers that match an expression."""
        return "\n".join([f"start: {start}", *self._rules])


def _closed(schema: Any) -> Any:
    """Return the schema, with objects limited to the properties it lists."""
    if not isinstance(schema, Mapping):
        return schema
    result: dict[str, Any] = dict(schema)
    for name in _NESTED:
        if isinstance(result.get(name), Mapping):
            result[name] = {key: _closed(value) for key, value in result[name].items()}
    if isinstance(result.get("items"), Mapping):
        result["items"] = _closed(result["items"])
    if "properties" in result and not any(name in result for name in _COMBINED):
        result.setdefault("additionalProperties", False)
    return result
