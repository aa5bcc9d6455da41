"""Send answers to the client, as complete responses or server-sent events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any, Protocol

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from paceline.llm import Chunk, Completion
from paceline.serve.answers import AnswerRequest, CompletionSet, unless_disconnected
from paceline.serve.errors import ApiError
from paceline.serve.requests import GenerationRequest
from paceline.serve.responses import CompletionDetails, PromptDetails, Usage
from paceline.serve.serving import Serving
from paceline.serve.settings import ConnectionSettings
from paceline.serve.trace import step

_CONNECTIONS = ConnectionSettings()
_EVENT_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
DONE = "[DONE]"
# OpenAPI schema of a stream of events.
EVENTS = {
    "content": {
        "text/event-stream": {
            "schema": {
                "type": "object",
                "properties": {"data": {"type": "string"}},
                "required": ["data"],
                "description": f"Events with JSON data; the data of the last is {DONE}.",
            }
        }
    }
}


class ResponseFormatter(Protocol):
    """Converts answers to the response format of one endpoint.

    Attributes:
        names_events: Whether a line with the event's `type` precedes the data of each event. If
            False, events have no such line, and the stream ends with the data `[DONE]`.
    """

    names_events: bool

    @property
    def reasoning_tokens(self) -> int:
        """Return the number of reasoning tokens in all answers so far."""
        ...

    def full(self, completions: Sequence[Completion], usage: Usage) -> BaseModel:
        """Return a single response with all answers, in order."""
        ...

    def first(self, index: int, chunk: Chunk) -> Sequence[BaseModel]:
        """Return the events that precede the text of an answer.

        Args:
            index: Index of the answer.
            chunk: First chunk of the answer.
        """
        ...

    def read(self, index: int, chunk: Chunk) -> None:
        """Process a chunk of an answer that is not streamed."""
        ...

    def delta(self, index: int, chunk: Chunk) -> Sequence[BaseModel]:
        """Return the events that stream a chunk of an answer."""
        ...

    def last(self, usage: Usage) -> Sequence[BaseModel]:
        """Return the events that follow all answers."""
        ...

    def failure(self, error: ApiError) -> BaseModel:
        """Return the event that ends a stream with an error."""
        ...


class EventStream(StreamingResponse):
    """Streams server-sent events, and aborts the answers if the client stops reading.

    Args:
        events: Encoded events.
        answers: Answers to abort if the client stops reading.
        seconds: Time limit for sending the whole stream, in seconds; None means no limit.
    """

    media_type = "text/event-stream"

    def __init__(
        self, events: AsyncIterator[str], answers: CompletionSet, seconds: float | None
    ) -> None:
        super().__init__(events, headers=_EVENT_HEADERS)
        self._answers, self._seconds = answers, seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send all events, and abort answers that are unfinished when sending ends."""
        try:
            async with asyncio.timeout(self._seconds):
                await super().__call__(scope, receive, send)
        finally:
            await self._answers.aclose()


async def respond(
    serving: Serving,
    request: Request,
    body: GenerationRequest,
    prompts: Sequence[list[int]],
    answer_requests: Sequence[AnswerRequest],
    formatter: ResponseFormatter,
) -> Response:
    """Generate the answers to a request, and return the HTTP response.

    If the client requested a stream, the response starts with the first chunk. An error before the
    first chunk sets the HTTP status; the stream reports a later error as an event.

    Args:
        serving: Served model.
        request: HTTP request.
        body: Parsed body of the request.
        prompts: Token ids of each prompt.
        answer_requests: Answers to generate, in the order of the prompts. Each prompt has the same
            number of answers.
        formatter: Object that converts the answers to the endpoint's response format.
    Raises:
        ApiError, PacelineError, TimeoutError, ClientDisconnect: The error that ended the answers.
    """
    seconds = serving.settings.timeout or None
    answers = CompletionSet(serving.llm, answer_requests, seconds, serving.gate, serving.meter)
    request.state.answers, request.state.prompt_tokens = answers, sum(map(len, prompts))
    try:
        if not body.stream:
            completions = await unless_disconnected(request, _finished(answers, formatter))
            usage = usage_of(prompts, completions, formatter.reasoning_tokens)
            return _json(formatter.full(completions, usage))
        chunks = aiter(answers)
        first = await unless_disconnected(request, anext(chunks))
    except BaseException:
        await answers.aclose()
        raise
    events = _events(serving, body, prompts, answers, formatter, first, chunks)
    return EventStream(
        events, answers, None if seconds is None else seconds + _CONNECTIONS.read_seconds
    )


async def _finished(answers: CompletionSet, formatter: ResponseFormatter) -> list[Completion]:
    """Pass all chunks to the formatter, and return the finished answers in order."""
    async for index, chunk in answers:
        formatter.read(index, chunk)
    return [answers.completions[index] for index in range(answers.count)]


def usage_of(
    prompts: Sequence[list[int]], completions: Sequence[Completion], reasoning_tokens: int
) -> Usage:
    """Count the tokens in the prompts and the answers of a request."""
    answers_per_prompt = len(completions) // len(prompts)
    stats = [completion.stats for completion in completions]
    accepted_tokens = sum(stat.accepted_tokens for stat in stats)
    prompt_tokens, completion_tokens = (
        sum(map(len, prompts)),
        sum(stat.new_tokens for stat in stats),
    )
    return Usage(
        prompt_tokens=prompt_tokens,
        completion_tokens=completion_tokens,
        total_tokens=prompt_tokens + completion_tokens,
        prompt_tokens_details=PromptDetails(
            cached_tokens=sum(stat.cached_tokens for stat in stats[::answers_per_prompt])
        ),
        completion_tokens_details=CompletionDetails(
            reasoning_tokens=reasoning_tokens,
            accepted_prediction_tokens=accepted_tokens,
            rejected_prediction_tokens=sum(stat.drafted_tokens for stat in stats) - accepted_tokens,
        ),
    )


async def _events(
    serving: Serving,
    body: GenerationRequest,
    prompts: Sequence[list[int]],
    answers: CompletionSet,
    formatter: ResponseFormatter,
    first: tuple[int, Chunk],
    chunks: AsyncIterator[tuple[int, Chunk]],
) -> AsyncIterator[str]:
    opened: set[int] = set()
    named = formatter.names_events
    try:
        async for index, chunk in _with(first, chunks):
            for event in () if index in opened else formatter.first(index, chunk):
                yield _event(event, named)
            opened.add(index)
            trace = step(chunk, serving.llm.tokenizer) if body.trace else None
            for event in formatter.delta(index, chunk):
                yield _event(event, named, trace)
                trace = None
        completions = [answers.completions[index] for index in sorted(answers.completions)]
        usage = usage_of(prompts, completions, formatter.reasoning_tokens)
        for event in formatter.last(usage):
            yield _event(event, named)
    except Exception as error:
        api_error = ApiError.from_exception(error)
        answers.error = api_error.message
        yield _event(formatter.failure(api_error), named)
    if not named:
        yield f"data: {DONE}\n\n"


async def _with(
    first: tuple[int, Chunk], rest: AsyncIterator[tuple[int, Chunk]]
) -> AsyncIterator[tuple[int, Chunk]]:
    yield first
    async for chunk in rest:
        yield chunk


def wants_usage(body: GenerationRequest) -> bool:
    """Return whether the client requested a final event with the token counts."""
    return body.stream_options is not None and bool(body.stream_options.include_usage)


def _event(content: BaseModel, named: bool, trace: dict[str, Any] | None = None) -> str:
    line = f"event: {getattr(content, 'type', 'error')}\n" if named else ""
    if trace is None:
        return f"{line}data: {content.model_dump_json()}\n\n"
    event = {**content.model_dump(mode="json"), "paceline": trace}
    return f"data: {json.dumps(event, ensure_ascii=False)}\n\n"


def _json(content: BaseModel) -> Response:
    return Response(content.model_dump_json(), media_type="application/json")
