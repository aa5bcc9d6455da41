"""Build grammars for whole answers: reasoning, then JSON, text or tool calls."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paceline import grammars
from paceline.errors import ConfigError
from paceline.parsing.closed_schemas import closed_schema
from paceline.parsing.reasoning import ReasoningMarkers
from paceline.parsing.rules import RuleWriter
from paceline.parsing.tool_format import ToolFormat
from paceline.parsing.tools import ToolUse

_SPACES = "/[ \\n\\r\\t]{0,4}/"  # models write up to two empty lines after reasoning
_ANY_TEXT = "/(.|\\n)*/"
# Text that cannot be mistaken for a tool call by any format whose `opening` is empty.
_NO_CALL = "/([^{\\[ \\n\\r\\t<](.|\\n)*)?/"


@dataclass(frozen=True, slots=True)
class AnswerShape:
    """The JSON schema that an answer must match, if any.

    Attributes:
        schema: JSON schema; None allows any text.
    """

    schema: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class ReasoningState:
    """Describes the reasoning that may precede an answer.

    Attributes:
        markers: Texts that enclose the reasoning; None if the answer contains no reasoning.
        is_open: Whether the prompt has already opened the reasoning.
    """

    markers: ReasoningMarkers | None = None
    is_open: bool = False


class AnswerGrammars:
    """Builds and compiles grammars for the answers of one model.

    Args:
        tokenizer: Tokenizer of the model.
        special: Ids of the tokenizer's special tokens, keyed by the tokens' texts.
        tool_format: Format in which the model writes tool calls.
    """

    def __init__(self, tokenizer: Any, special: Mapping[str, int], tool_format: ToolFormat) -> None:
        self._tokenizer, self._special, self._format = tokenizer, special, tool_format

    def grammar(
        self,
        use: ToolUse,
        shape: AnswerShape,
        reasoning: ReasoningState,
        eos_token_ids: Sequence[int],
    ) -> grammars.Grammar | None:
        """Return the grammar that an answer must match; None if any text is allowed.

        Args:
            use: Tools of the request, and how the model may call them.
            shape: JSON schema that the answer must match, if any.
            reasoning: Reasoning that may precede the answer.
            eos_token_ids: Ids of the tokens that may end an answer.
        Raises:
            ConfigError: A schema cannot be compiled.
        """
        if not use.is_constrained and shape.schema is None:
            return None
        if not use.tools and reasoning.markers is None and not self._format.prefix:
            return grammars.json_schema(self._tokenizer, shape.schema or {}, eos_token_ids)
        rules = RuleWriter(self._special)
        answer = self._answer(use, shape, rules)
        before = _reasoning(reasoning, rules)
        try:
            return grammars.lark(self._tokenizer, rules.grammar(f"{before}{answer}"), eos_token_ids)
        except ConfigError:
            self._check_schemas(use, eos_token_ids)
            raise

    def _check_schemas(self, use: ToolUse, eos_token_ids: Sequence[int]) -> None:
        """Raise a `ConfigError` that names the first tool with an invalid schema."""
        for tool in use.callable_tools:
            try:
                grammars.json_schema(self._tokenizer, closed_schema(tool.parameters), eos_token_ids)
            except ConfigError as error:
                raise ConfigError(f"tools: {tool.name}: {error}") from error

    def _answer(self, use: ToolUse, shape: AnswerShape, rules: RuleWriter) -> str:
        calls = ""
        if use.tools:
            schemas = {tool.name: tool.parameters for tool in use.callable_tools}
            calls = self._format.calls(schemas, not use.parallel, rules)
        if use.must_call:
            return f"({calls})"
        prefix = rules.literal(self._format.prefix) if self._format.prefix else ""
        if shape.schema is not None:
            spaced = {**shape.schema, "x-guidance": _guidance(shape.schema)}
            text = rules.rule("%json " + json.dumps(spaced, ensure_ascii=False))
        elif prefix or not self._format.opening:
            text = rules.rule(_ANY_TEXT if prefix else _NO_CALL)
        else:
            text = rules.text_without(self._format.opening)
            return f"{text} ({calls})?"
        return f"({prefix} {text} | {calls})" if calls else f"{prefix} {text}"


def _guidance(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a schema's llguidance options; add a white-space pattern if none is set."""
    given = schema.get("x-guidance")
    return {
        "whitespace_pattern": grammars.WHITESPACE,
        **(given if isinstance(given, Mapping) else {}),
    }


def _reasoning(reasoning: ReasoningState, rules: RuleWriter) -> str:
    """Return the grammar expression for the reasoning before an answer, if any."""
    markers = reasoning.markers
    if markers is None:
        return ""
    text = rules.text_until(markers.close)
    if reasoning.is_open:
        return f"{text} {_SPACES} "
    return f"({rules.literal(markers.open)} {text} {_SPACES})? "
