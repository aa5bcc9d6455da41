"""Answers on their way to the client: whole, or as server-sent events."""

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
from paceline.serve.answers import AnswerRequest, CompletionSet, unless_gone
from paceline.serve.errors import ApiError
from paceline.serve.requests import GenerationRequest
from paceline.serve.responses import CompletionDetails, PromptDetails, Usage
from paceline.serve.serving import Serving
from paceline.serve.trace import step

_LINGER = 60.0  # seconds that a client may go on reading after its request's time is over
_EVENT_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
DONE = "[DONE]"
EVENTS = {"content": {"text/event-stream": {"schema": {
    "type": "object", "properties": {"data": {"type": "string"}}, "required": ["data"],
    "description": f"An event; its data are JSON, and {DONE} in the last.",
}}}}  # fmt: skip  # in OpenAPI's words


class Form(Protocol):
    """How one endpoint writes answers."""

    def whole(self, completions: Sequence[Completion], usage: Usage) -> BaseModel:
        """All answers, in order of their places."""
        ...

    def opening(self, place: int, chunk: Chunk) -> BaseModel | None:
        """The event before the first piece of an answer, if there is one.

        Args:
            place: of the answer.
            chunk: its first one.
        """
        ...

    def piece(self, place: int, chunk: Chunk) -> BaseModel:
        """The event that tells of a step."""
        ...

    def closing(self, usage: Usage) -> BaseModel:
        """The event with the counts, after all answers."""
        ...


class EventStream(StreamingResponse):
    """Server-sent events about answers, which are aborted when the client goes away or does not
    read to the end in time.
    """

    media_type = "text/event-stream"

    def __init__(
        self, events: AsyncIterator[str], answers: CompletionSet, seconds: float | None
    ) -> None:
        super().__init__(events, headers=_EVENT_HEADERS)
        self._answers, self._seconds = answers, seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send them."""
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
    asked: Sequence[AnswerRequest],
    form: Form,
) -> Response:
    """Give the answers in the form of an endpoint.

    A stream begins with its first token; what goes wrong before has a status of its own, what goes
    wrong later is an event.

    Args:
        prompts: token ids. asked: the answers, as many for each prompt, in order.
    Raises:
        ApiError, PacelineError, TimeoutError, ClientDisconnect: what ended them.
    """
    seconds = serving.settings.timeout or None
    answers = CompletionSet(serving.llm, asked, seconds, serving.gate, serving.meter)
    request.state.answers, request.state.prompt_tokens = answers, sum(map(len, prompts))
    try:
        if not body.stream:
            completions = await unless_gone(request, answers.finish())
            return _json(form.whole(completions, usage_of(prompts, completions)))
        said = aiter(answers)
        first = await unless_gone(request, anext(said))
    except BaseException:
        await answers.aclose()
        raise
    events = _events(serving, body, prompts, answers, form, first, said)
    return EventStream(events, answers, None if seconds is None else seconds + _LINGER)


def usage_of(prompts: Sequence[list[int]], completions: Sequence[Completion]) -> Usage:
    """The counts of a request, given all of its answers in order."""
    each = len(completions) // len(prompts)
    stats = [completion.stats for completion in completions]
    accepted = sum(one.accepted_tokens for one in stats)
    given, new = sum(map(len, prompts)), sum(one.new_tokens for one in stats)
    return Usage(
        prompt_tokens=given,
        completion_tokens=new,
        total_tokens=given + new,
        prompt_tokens_details=PromptDetails(
            cached_tokens=sum(one.cached_tokens for one in stats[::each])
        ),
        completion_tokens_details=CompletionDetails(
            accepted_prediction_tokens=accepted,
            rejected_prediction_tokens=sum(one.drafted_tokens for one in stats) - accepted,
        ),
    )


async def _events(
    serving: Serving,
    body: GenerationRequest,
    prompts: Sequence[list[int]],
    answers: CompletionSet,
    form: Form,
    first: tuple[int, Chunk],
    said: AsyncIterator[tuple[int, Chunk]],
) -> AsyncIterator[str]:
    opened: set[int] = set()
    try:
        async for place, chunk in _with(first, said):
            if place not in opened and (opening := form.opening(place, chunk)) is not None:
                yield _event(opening)
            opened.add(place)
            if body.trace or chunk.text or chunk.logprobs or chunk.completion is not None:
                yield _event(
                    form.piece(place, chunk),
                    step(chunk, serving.llm.tokenizer) if body.trace else None,
                )
        if body.stream_options is not None and body.stream_options.include_usage:
            yield _event(
                form.closing(
                    usage_of(
                        prompts,
                        [answers.completions[place] for place in sorted(answers.completions)],
                    )
                )
            )
    except Exception as error:
        told = ApiError.of(error)
        answers.error = told.message
        yield _event(told.body)
    yield f"data: {DONE}\n\n"


async def _with(
    first: tuple[int, Chunk], rest: AsyncIterator[tuple[int, Chunk]]
) -> AsyncIterator[tuple[int, Chunk]]:
    yield first
    async for one in rest:
        yield one


def _event(content: BaseModel, trace: dict[str, Any] | None = None) -> str:
    if trace is None:
        return f"data: {content.model_dump_json()}\n\n"
    fields = {**content.model_dump(mode="json"), "paceline": trace}
    return f"data: {json.dumps(fields, ensure_ascii=False)}\n\n"


def _json(content: BaseModel) -> Response:
    return Response(content.model_dump_json(), media_type="application/json")
