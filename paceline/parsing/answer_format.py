"""Choose how a model's answers are parsed, and which grammar constrains them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.errors import ConfigError, did_you_mean
from paceline.parsing.answer_grammar import AnswerGrammars, AnswerShape, ReasoningState
from paceline.parsing.formats import harmony
from paceline.parsing.parser import AnswerParser, FormatParser, ReadAnswer
from paceline.parsing.reader import AnswerReader
from paceline.parsing.reasoning import ReasoningMarkers, after_reasoning, read_text
from paceline.parsing.reasoning_budget import ReasoningBudget
from paceline.parsing.response_template import TemplateParser
from paceline.parsing.settings import AUTO, OFF, PROMPT_END_TOKENS
from paceline.parsing.tool_format import FORMATS, ToolFormat, find_format, named_format
from paceline.parsing.tools import ToolUse

REASONING = {
    "harmony": ReasoningMarkers(harmony.ANALYSIS, f"<|end|>{harmony.START}assistant"),
    "gemma4": ReasoningMarkers("<|channel>thought\n", "<channel|>"),
    "mistral": ReasoningMarkers("[THINK]", "[/THINK]"),
    "seed_oss": ReasoningMarkers("<seed:think>", "</seed:think>"),
    "think": ReasoningMarkers("<think>", "</think>"),
}
Processor = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class AnswerPlan:
    """The constraints and the parser for the answers to one prompt.

    Attributes:
        processors: Logits processors that constrain each answer.
        new_reader: Function that returns a parser for one answer; None if the text needs no
            parsing.
    """

    processors: list[Processor]
    new_reader: Callable[[], AnswerReader] | None


def check_parsers(tool_call_parser: str, reasoning_parser: str) -> None:
    """Check the names of the parsers of `AnswerFormat`, without a tokenizer.

    Raises:
        ConfigError: A name is unknown.
    """
    if tool_call_parser != AUTO:
        named_format(tool_call_parser)
    if reasoning_parser not in (AUTO, OFF):
        _named_markers(reasoning_parser)


class AnswerFormat:
    """Plans how to parse and constrain the answers of one model.

    Args:
        tokenizer: Tokenizer of the model.
        tool_call_parser: Name of the tool-call format; "auto" detects the format from the chat
            template.
        reasoning_parser: Name of the reasoning markers; "auto" detects the markers from the chat
            template; "none" leaves reasoning in the text.
    Attributes:
        tool_format: Format of tool calls; `FORMATS["hermes"]` if the chat template defines none.
        markers: Texts that enclose the reasoning; None if the model does not reason.
    Raises:
        ConfigError: `tool_call_parser` or `reasoning_parser` is not a known name.
    """

    def __init__(
        self, tokenizer: Any, tool_call_parser: str = AUTO, reasoning_parser: str = AUTO
    ) -> None:
        self._tokenizer = tokenizer
        self._template = template = _template_of(tokenizer)
        self._response_template = (
            getattr(tokenizer, "response_template", None) if tool_call_parser == AUTO else None
        )
        known_format = (
            find_format(template) if tool_call_parser == AUTO else named_format(tool_call_parser)
        )
        self.tool_format: ToolFormat = known_format or FORMATS["hermes"]
        self.markers = _find_markers(template, reasoning_parser)
        added: Mapping[int, Any] = getattr(tokenizer, "added_tokens_decoder", {})
        self._special = {token.content: id for id, token in added.items() if token.special}
        self._grammars = AnswerGrammars(tokenizer, self._special, self.tool_format)

    def plan(
        self,
        prompt_ids: Sequence[int],
        use: ToolUse,
        shape: AnswerShape,
        eos_token_ids: Sequence[int],
        max_reasoning_tokens: int | None = None,
    ) -> AnswerPlan:
        """Choose how to constrain and parse the answers to a prompt.

        Args:
            prompt_ids: Token ids of the prompt.
            use: Tools of the request, and how the model may call them.
            shape: JSON schema that the answer must match, if any.
            eos_token_ids: Ids of the tokens that may end an answer.
            max_reasoning_tokens: Maximum number of reasoning tokens; None means no limit.
        Raises:
            ConfigError: A JSON schema cannot be compiled, or `max_reasoning_tokens` is set for a
                model that does not reason.
        """
        prompt = self._tokenizer.decode(
            list(prompt_ids)[-PROMPT_END_TOKENS:], skip_special_tokens=False
        )
        reasoning = self._reasoning_after(prompt)
        processors: list[Processor] = []
        if max_reasoning_tokens is not None:
            processors += self._budget(reasoning, max_reasoning_tokens)
        grammar = self._grammars.grammar(use, shape, reasoning, eos_token_ids)
        processors += [] if grammar is None else [grammar]
        if not use.tools and reasoning.markers is None:
            return AnswerPlan(processors, None)
        return AnswerPlan(processors, lambda: self._reader(use, reasoning, prompt))

    def template_has(self, variable: str) -> bool:
        """Return whether the chat template contains the name of a variable."""
        return variable in self._template

    def _reasoning_after(self, prompt: str) -> ReasoningState:
        """Describe the reasoning that may precede the answer to a prompt."""
        if self.markers is None or prompt.rstrip().endswith(self.markers.close):
            return ReasoningState()
        return ReasoningState(self.markers, self.markers.is_open(prompt))

    def _budget(self, reasoning: ReasoningState, max_tokens: int) -> list[Processor]:
        if self.markers is None:
            raise ConfigError(
                "max_reasoning_tokens: the chat template has no reasoning. Leave the limit out."
            )
        markers = reasoning.markers
        if markers is None:
            return []
        return [ReasoningBudget(self._tokenizer, markers, reasoning.is_open, max_tokens)]

    def _reader(self, use: ToolUse, reasoning: ReasoningState, prompt: str) -> AnswerReader:
        shown = set(self.tool_format.markers)
        if reasoning.markers is not None:
            around = reasoning.markers.open + reasoning.markers.close
            shown |= {text for text in self._special if text in around}
        if self._response_template is not None and not use.is_constrained:
            return AnswerReader(self._template_parser(use, prompt), ())
        hidden = {id for text, id in self._special.items() if text not in shown}
        return AnswerReader(self._parser(use, reasoning), hidden)

    def _template_parser(self, use: ToolUse, prompt: str) -> AnswerParser:
        assert self._response_template is not None, "only with a template"
        return TemplateParser(self._response_template, prompt, use.definitions or ())

    def _parser(self, use: ToolUse, reasoning: ReasoningState) -> AnswerParser:
        reads_all = self.tool_format.read is harmony.read_harmony
        read: ReadAnswer = self.tool_format.read if use.tools or reads_all else read_text
        if reasoning.markers is not None and not reads_all:
            read = after_reasoning(read, reasoning.markers, reasoning.is_open)
        return FormatParser(read, use.schemas)


def _template_of(tokenizer: Any) -> str:
    template = getattr(tokenizer, "chat_template", None)
    if isinstance(template, Mapping):  # maps the names of several templates to their texts
        return "\n".join(map(str, template.values()))
    return template if isinstance(template, str) else ""


def _find_markers(template: str, name: str) -> ReasoningMarkers | None:
    if name == OFF:
        return None
    if name == AUTO:
        if harmony.CHANNEL in template and harmony.MESSAGE in template:
            return REASONING["harmony"]
        return next((each for each in REASONING.values() if each.close in template), None)
    return _named_markers(name)


def _named_markers(name: str) -> ReasoningMarkers:
    if name not in REASONING:
        raise ConfigError(
            f"\0reasoning_parser\0: got {name[:60]!r}, which is unknown."
            f"{did_you_mean(name[:60], [AUTO, OFF, *REASONING])}"
        )
    return REASONING[name]
