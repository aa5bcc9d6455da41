"""Constrain and parse the model's answers to a conversation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from paceline.core.origin import Origin
from paceline.core.sampling_params import SamplingParams
from paceline.engine.completion import Completion
from paceline.parsing.answer_format import AnswerFormat, AnswerPlan
from paceline.parsing.answer_grammar import AnswerShape
from paceline.parsing.events import AssistantMessage
from paceline.parsing.reader import AnswerToken
from paceline.parsing.tools import tool_use
from paceline.sampling.stream_writer import StreamWriter
from paceline.text.stop_strings import StopStrings


@dataclass(frozen=True, slots=True)
class ChatPlan:
    """The prompt of a conversation, and how to constrain and parse its answers.

    Attributes:
        tokenizer: Tokenizer of the model.
        prompt_ids: Token ids of the conversation.
        answers: Constraints and parsers for the answers.
    """

    tokenizer: Any
    prompt_ids: list[int]
    answers: AnswerPlan

    @staticmethod
    def of(
        tokenizer: Any,
        prompt_ids: list[int],
        eos_token_ids: Sequence[int],
        tools: Any,
        tool_choice: Any,
    ) -> ChatPlan:
        """Plan how to constrain and parse the answers to a prompt.

        Args:
            tokenizer: Tokenizer of the model.
            prompt_ids: Token ids of the conversation.
            eos_token_ids: Tokens that end an answer.
            tools: Tool definitions, or None.
            tool_choice: Whether the model must call a tool, and which one, as in `LLM.chat`.
        Raises:
            ConfigError: `tools` or `tool_choice` is invalid, or a schema cannot be compiled.
        """
        use = tool_use(tools, tool_choice)
        answers = AnswerFormat(tokenizer).plan(prompt_ids, use, AnswerShape(), eos_token_ids)
        return ChatPlan(tokenizer, prompt_ids, answers)

    def params(self, params: SamplingParams | None) -> SamplingParams:
        """Return the caller's sampling parameters with the plan's constraints added."""
        return planned_params(params or SamplingParams(), self.answers)

    def with_messages(self, completion: Completion, params: SamplingParams | None) -> Completion:
        """Add the parsed message to each answer to a prompt.

        Args:
            completion: First answer to the prompt; the other answers are in `others`.
            params: The caller's parameters; `skip_special_tokens` also applies to the messages.
        """
        given = params or SamplingParams()
        others = tuple(self._with_message(other, given) for other in completion.others)
        return replace(self._with_message(completion, given), others=others)

    def _with_message(self, completion: Completion, params: SamplingParams) -> Completion:
        if self.answers.new_reader is None:
            return replace(completion, message=AssistantMessage(completion.text))
        reader = self.answers.new_reader()
        reader.read(self._written(completion, params, skip_special_tokens=False), last=True)
        shown = self._written(completion, params, params.skip_special_tokens)
        text = "".join(piece.text for piece in shown)
        return replace(completion, text=text, message=reader.message)

    def _written(
        self, completion: Completion, params: SamplingParams, skip_special_tokens: bool
    ) -> list[AnswerToken]:
        """Convert an answer's tokens to text, and return each token with its text."""
        arguments = (self.tokenizer, self.prompt_ids, skip_special_tokens)
        stop = StopStrings(params.stop, *arguments) if params.stop else None
        writer = StreamWriter(self.tokenizer, self.prompt_ids, stop, skip_special_tokens)
        ids = completion.token_ids
        written = writer.write(ids, [Origin.TARGET] * len(ids), last=True)
        return [
            AnswerToken(text, ids[mark.token_index], mark.token_index) for text, mark in written
        ]


def planned_params(params: SamplingParams, plan: AnswerPlan) -> SamplingParams:
    """Add the plan's logits processors to the sampling parameters.

    If the plan parses answers, the returned parameters keep special tokens in the text.
    """
    skips = params.skip_special_tokens and plan.new_reader is None
    processors = (*params.logits_processors, *plan.processors)
    return replace(params, logits_processors=processors, skip_special_tokens=skips)
