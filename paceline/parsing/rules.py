"""Write grammars for answers in llguidance's dialect of Lark."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from paceline.parsing.closed_schemas import closed_schema

# The separators of Python's json.dumps, and of the filter tojson in chat templates. Fixed
# separators leave the model no choice between a value and the next key.
_SEPARATORS = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


class RuleWriter:
    """Collects the rules of one grammar, and writes the grammar as text.

    Args:
        special: Ids of the tokenizer's special tokens, keyed by the tokens' texts. A grammar refers
            to special tokens by id, because they are not text.
    """

    def __init__(self, special: Mapping[str, int]) -> None:
        self._special = special
        ordered = sorted(special, key=len, reverse=True)
        self._pattern = (
            re.compile("(" + "|".join(map(re.escape, ordered)) + ")") if special else None
        )
        self._rules: list[str] = []

    def literal(self, text: str) -> str:
        """Return the grammar expression for a literal, which may contain special tokens."""
        parts = [text] if self._pattern is None else self._pattern.split(text)
        return " ".join(
            f"<[{self._special[part]}]>"
            if part in self._special
            else json.dumps(part, ensure_ascii=False)
            for part in parts
            if part
        )

    def rule(self, expression: str) -> str:
        """Add a rule to the grammar, and return the rule's name."""
        name = f"part_{len(self._rules)}"
        self._rules.append(f"{name}: {expression}")
        return name

    def json(self, schema: Mapping[str, Any]) -> str:
        """Add a rule for JSON that matches a schema, and return the rule's name.

        The JSON uses fixed separators, like `json.dumps`. Objects may have only the properties that
        their schema lists, unless the schema allows others explicitly.
        """
        closed = {**closed_schema(schema), "x-guidance": _SEPARATORS}
        return self.rule("%json " + json.dumps(closed, ensure_ascii=False))

    def text_until(self, end: str) -> str:
        """Add a rule for any text up to and including `end`; return the rule's name."""
        if any(end.startswith(token) for token in self._special):
            return self.rule(f"/(.|\\n)*/ {self.literal(end)}")
        name = f"part_{len(self._rules)}"
        self._rules.append(f"{name}[suffix={json.dumps(end, ensure_ascii=False)}]: /(.|\\n)*/")
        return name

    def text_without(self, literal: str) -> str:
        """Add a rule for text that does not contain `literal`; return the rule's name."""
        if any(literal.startswith(token) for token in self._special):
            return self.rule("/(.|\\n)*/")
        quoted = re.escape(literal).replace("/", "\\/")
        name = f"TEXT_{len(self._rules)}"
        self._rules.append(f"{name}: /(?s:.*)/ & ~/(?s:.*){quoted}(?s:.*)/")
        return name

    def grammar(self, start: str) -> str:
        """Return the text of a grammar for answers that match the expression `start`."""
        return "\n".join([f"start: {start}", *self._rules])
