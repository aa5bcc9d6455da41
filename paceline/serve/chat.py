"""Serve the endpoint /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Sequence

from fastapi import APIRouter
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from paceline.errors import ConfigError
from paceline.llm import Chunk, Completion
from paceline.parsing.events import (
    AnswerEvent,
    ArgumentsText,
    AssistantMessage,
    CallStart,
    ContentText,
    ReasoningText,
)
from paceline.serve.chat_plan import PlannedChat, plan_chat
from paceline.serve.errors import ApiError
from paceline.serve.logprobs import AnswerSpelling, TokenLogprobs, chat_logprobs
from paceline.serve.requests import ChatRequest
from paceline.serve.responding import EVENTS, respond, wants_usage
from paceline.serve.responses import (
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatLogprobs,
    ChatMessage,
    ChatResponse,
    Delta,
    FunctionCall,
    FunctionDelta,
    ToolCallBody,
    ToolCallDelta,
    Usage,
)
from paceline.serve.serving import Serving


def chat_routes(serving: Serving) -> APIRouter:
    """Build the route of the endpoint /v1/chat/completions."""
    router = APIRouter()

    @router.post(
        "/v1/chat/completions",
        response_model=None,
        responses={200: {"model": ChatResponse, **EVENTS}},
    )
    async def create_chat_completion(body: ChatRequest, request: Request) -> Response:
        """Answer the last message of a conversation."""
        serving.check_model(body.model)
        top = _top_logprobs(body, serving.settings.max_logprobs)
        serving.check_answers(body.n or 1)
        plan = await plan_chat(serving, body, top)
        formatter = ChatFormatter(serving, request.state.id, plan, body, top)
        return await respond(serving, request, body, [plan.prompt], plan.answer_requests, formatter)

    return router


class ChatFormatter:
    """Formats answers as chat messages.

    Args:
        serving: Served model.
        id: Id of the HTTP request.
        plan: Prompt, parameters and parsers of the answers.
        body: Body of the request.
        top: Number of top-k tokens to report per position; None reports no log-probabilities.
    """

    names_events = False

    def __init__(
        self, serving: Serving, id: str, plan: PlannedChat, body: ChatRequest, top: int | None
    ) -> None:
        self._model, self._id, self._request_id = serving.names[0], f"chatcmpl-{id}", id
        self._tokenizer, self._plan, self._body = serving.llm.tokenizer, plan, body
        self._spellings: dict[int, AnswerSpelling] = {}
        self._top = top

    @property
    def reasoning_tokens(self) -> int:
        """Return the number of reasoning tokens in all answers so far."""
        return self._plan.reasoning_tokens

    def full(self, completions: Sequence[Completion], usage: Usage) -> ChatResponse:
        """Return all answers in one response."""
        choices = [
            ChatChoice(
                index=index,
                message=self._message(index, self._plan.answers[index].message),
                finish_reason=self._plan.finish_reason(index, completion.finish_reason),
                logprobs=self._logprobs(
                    index, completion.token_ids, completion.logprobs, last=True
                ),
            )
            for index, completion in enumerate(completions)
        ]
        return ChatResponse(id=self._id, model=self._model, choices=choices, usage=usage)

    def first(self, index: int, chunk: Chunk) -> list[ChatChunk]:
        """Return the first event of an answer, which states the message's role."""
        delta = Delta(role="assistant", content="")
        return [self._event(ChatChunkChoice(index=index, delta=delta))]

    def read(self, index: int, chunk: Chunk) -> None:
        """Add a chunk to the message of an answer that is not streamed."""
        self._plan.answers[index].read(chunk)

    def delta(self, index: int, chunk: Chunk) -> list[ChatChunk]:
        """Return the event that streams a chunk of an answer."""
        events = self._plan.answers[index].read(chunk)
        reason = None
        if chunk.completion is not None:
            reason = self._plan.finish_reason(index, chunk.completion.finish_reason)
        if not (events or chunk.logprobs or reason or self._body.trace):
            return []
        logprobs = self._logprobs(index, chunk.token_ids, chunk.logprobs, last=reason is not None)
        choice = ChatChunkChoice(
            index=index,
            delta=self._delta(index, events),
            finish_reason=reason,
            logprobs=logprobs,
        )
        return [self._event(choice)]

    def last(self, usage: Usage) -> list[ChatChunk]:
        """Return the event with the token counts, if the client requested them."""
        if not wants_usage(self._body):
            return []
        return [ChatChunk(id=self._id, model=self._model, choices=[], usage=usage)]

    def failure(self, error: ApiError) -> BaseModel:
        """Return the event that ends a stream with an error."""
        return error.body

    def _event(self, choice: ChatChunkChoice) -> ChatChunk:
        return ChatChunk(id=self._id, model=self._model, choices=[choice])

    def _call_id(self, index: int, call: int) -> str:
        return f"call_{self._request_id}_{index}_{call}"

    def _message(self, index: int, message: AssistantMessage) -> ChatMessage:
        calls = [
            ToolCallBody(
                id=self._call_id(index, call),
                function=FunctionCall(name=entry.name, arguments=entry.arguments),
            )
            for call, entry in enumerate(message.tool_calls)
        ]
        return ChatMessage(
            content=message.content if message.content or not calls else None,
            reasoning_content=message.reasoning or None,
            tool_calls=calls or None,
        )

    def _delta(self, index: int, events: Sequence[AnswerEvent]) -> Delta:
        """Convert the events of one chunk to a delta, with one entry per tool call."""
        message = AssistantMessage()
        calls: dict[int, ToolCallDelta] = {}
        for event in events:
            match event:
                case CallStart(call, name):
                    calls[call] = ToolCallDelta(
                        index=call,
                        id=self._call_id(index, call),
                        type="function",
                        function=FunctionDelta(name=name),
                    )
                case ArgumentsText(call, text):
                    entry = calls.setdefault(
                        call, ToolCallDelta(index=call, function=FunctionDelta())
                    )
                    entry.function.arguments += text
                case ContentText() | ReasoningText():
                    message.add([event])
        return Delta(
            content=message.content if message.content or not events else None,
            reasoning_content=message.reasoning or None,
            tool_calls=list(calls.values()) or None,
        )

    def _logprobs(
        self, index: int, token_ids: list[int], logprobs: TokenLogprobs | None, last: bool
    ) -> ChatLogprobs | None:
        if logprobs is None or self._top is None:
            return None
        if index not in self._spellings:
            answer_request = self._plan.answer_requests[index]
            self._spellings[index] = AnswerSpelling(
                self._tokenizer, answer_request.prompt, answer_request.params.skip_special_tokens
            )
        return chat_logprobs(self._spellings[index], token_ids, logprobs, self._top, last)


def _top_logprobs(body: ChatRequest, max_logprobs: int) -> int | None:
    if body.top_logprobs is not None and not body.logprobs:
        raise ConfigError(
            f"top_logprobs: got {body.top_logprobs} without logprobs; expected both. Add logprobs:"
            " true."
        )
    if (body.top_logprobs or 0) > max_logprobs:
        raise ConfigError(
            f"top_logprobs: got {body.top_logprobs}; expected at most {max_logprobs}."
        )
    return body.top_logprobs or 0 if body.logprobs else None
