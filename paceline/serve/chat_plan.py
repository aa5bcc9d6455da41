"""Convert a conversation to a prompt, sampling parameters and answer parsers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from paceline.engine.chat import planned_params
from paceline.errors import ConfigError
from paceline.llm import Chunk
from paceline.parsing.answer_grammar import AnswerShape
from paceline.parsing.events import AnswerEvent, AssistantMessage, ContentText
from paceline.parsing.reader import AnswerReader, AnswerToken
from paceline.parsing.tools import ToolUse, tool_use
from paceline.serve.answers import AnswerRequest
from paceline.serve.requests import ChatRequest
from paceline.serve.sampling import params_of_answers, response_schema
from paceline.serve.serving import Serving

_EFFORT, _THINKING = "reasoning_effort", "enable_thinking"  # variables of chat templates
_NO_EFFORT = "none"


class AnswerEvents:
    """Splits one answer into reasoning, text and tool calls, chunk by chunk.

    Args:
        reader: Parser of the answer; None if the whole answer is plain text.
    Attributes:
        message: Message parsed from the answer so far.
    """

    def __init__(self, reader: AnswerReader | None) -> None:
        self._reader = reader
        self.message = AssistantMessage() if reader is None else reader.message
        self._steps: dict[int, _ShownStep] = {}  # steps with text that has not arrived yet
        self._num_tokens = 0

    @property
    def reasoning_tokens(self) -> int:
        """Return the number of reasoning tokens in the answer so far."""
        return 0 if self._reader is None else self._reader.reasoning_tokens

    def read(self, chunk: Chunk) -> list[AnswerEvent]:
        """Parse the next chunk of the answer, and return the resulting events."""
        if self._reader is None:
            events: list[AnswerEvent] = [ContentText(chunk.text)] if chunk.text else []
            self.message.add(events)
            return events
        self._steps[chunk.step] = _ShownStep(self._num_tokens, chunk.token_ids)
        self._num_tokens += len(chunk.token_ids)
        pieces = []
        for (text, _), mark in zip(chunk.pieces, chunk.marks, strict=True):
            step = self._steps[mark.step]
            token = step.token_ids[mark.token_index] if step.token_ids else -1
            pieces.append(AnswerToken(text, token, step.first_index + mark.token_index))
        if chunk.marks:
            first = chunk.marks[-1].step
            self._steps = {number: step for number, step in self._steps.items() if number >= first}
        return self._reader.read(pieces, last=chunk.completion is not None)


class _ShownStep(NamedTuple):
    first_index: int
    token_ids: list[int]


@dataclass(frozen=True, slots=True)
class PlannedChat:
    """A validated chat request, ready for the engine.

    Attributes:
        prompt: Token ids of the conversation.
        answer_requests: Prompt and sampling parameters of each answer.
        answers: Per answer, the object that converts the answer's chunks to events.
    """

    prompt: list[int]
    answer_requests: list[AnswerRequest]
    answers: list[AnswerEvents] = field(default_factory=list)

    @property
    def reasoning_tokens(self) -> int:
        """Return the number of reasoning tokens in all answers so far."""
        return sum(answer.reasoning_tokens for answer in self.answers)

    def finish_reason(self, index: int, reason: str) -> str:
        """Return the finish reason for the client, which may be "tool_calls".

        Args:
            index: Index of the answer.
            reason: Finish reason of the engine, such as "stop" or "length". If the answer contains
                tool calls, "stop" becomes "tool_calls".
        """
        has_calls = bool(self.answers[index].message.tool_calls)
        return "tool_calls" if has_calls and reason == "stop" else reason


async def plan_chat(serving: Serving, body: ChatRequest, top: int | None = None) -> PlannedChat:
    """Validate a chat request, and return the prompt, parameters and answer parsers.

    Args:
        serving: Served model.
        body: Body of the request.
        top: Number of top-k tokens to report per position; None reports no log-probabilities.
    Raises:
        ConfigError: A field is invalid, or the chat template rejects the conversation.
        ApiError: The prompt is too long.
    """
    return await serving.run_in_thread(lambda: _planned(serving, body, top))


def _planned(serving: Serving, body: ChatRequest, top: int | None) -> PlannedChat:
    max_tokens = body.max_completion_tokens or body.max_tokens or serving.llm.max_length
    params = serving.sampler.params(body, max_tokens, top)
    use = tool_use(body.tools, body.tool_choice, body.parallel_tool_calls is not False)
    schema = response_schema(body.response_format)
    prompt = prompt_of(serving, body, use)
    plan = serving.answer_format.plan(
        prompt,
        use,
        AnswerShape(schema),
        serving.llm.eos_token_ids,
        body.thinking_token_budget,
    )
    if body.prediction is not None:
        params = replace(params, prediction=body.prediction.text)
    params = planned_params(params, plan)
    each = params_of_answers(params)
    readers = [None if plan.new_reader is None else plan.new_reader() for _ in each]
    return PlannedChat(
        prompt,
        [AnswerRequest(prompt, answer_params) for answer_params in each],
        list(map(AnswerEvents, readers)),
    )


def prompt_of(serving: Serving, body: ChatRequest, use: ToolUse) -> list[int]:
    """Apply the chat template to a conversation, and return the prompt's token ids.

    Args:
        serving: Served model.
        body: Body of the request.
        use: Tools that the prompt describes to the model.
    Raises:
        ConfigError: The chat template rejects the conversation.
        ApiError: The prompt is too long.
    """
    ids = serving.llm.chat_prompt(
        body.messages,
        _template_variables(serving, body),
        tools=use.definitions,
        add_generation_prompt=body.add_generation_prompt,
        continue_final_message=body.continue_final_message,
        local_files=False,
    )
    serving.check_prompt(ids)
    return ids


def _template_variables(serving: Serving, body: ChatRequest) -> Mapping[str, Any] | None:
    """Return the client's variables for the chat template, and the reasoning effort."""
    given, effort = body.chat_template_kwargs, body.reasoning_effort
    if effort is None or serving.answer_format.markers is None:
        return given  # without reasoning, there is no effort to set
    if serving.answer_format.template_has(_EFFORT):
        return {_EFFORT: effort, **(given or {})}
    if serving.answer_format.template_has(_THINKING):
        return {_THINKING: effort != _NO_EFFORT, **(given or {})}
    raise ConfigError(
        f"reasoning_effort: got {effort[:60]!r}, but the chat template has no such variable. Leave"
        " it out, or set thinking_token_budget."
    )
