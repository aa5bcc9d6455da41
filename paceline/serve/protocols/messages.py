"""Serve the endpoint /v1/messages, in the format of Anthropic's API."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from paceline.llm import Chunk, Completion
from paceline.serve.chat_plan import PlannedChat, plan_chat
from paceline.serve.errors import ApiError
from paceline.serve.protocol_settings import MESSAGES_PATH
from paceline.serve.protocols.messages_request import MessagesRequest, chat_of
from paceline.serve.protocols.parts import Part, PartWriter, ServerEvent, event
from paceline.serve.responding import EVENTS, respond
from paceline.serve.responses import Usage
from paceline.serve.serving import Serving

_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


class MessageBody(BaseModel):
    """Body of a response from /v1/messages."""

    id: str
    type: str = "message"
    role: str = "assistant"
    model: str
    content: list[dict[str, Any]]
    stop_reason: str | None
    stop_sequence: str | None = None
    usage: dict[str, int]


def message_routes(serving: Serving) -> APIRouter:
    """Build the route of the endpoint /v1/messages."""
    router = APIRouter()

    @router.post(
        MESSAGES_PATH,
        response_model=None,
        responses={200: {"model": MessageBody, **EVENTS}},
    )
    async def create_message(body: MessagesRequest, request: Request) -> Response:
        """Answer the last message of a conversation."""
        serving.check_model(body.model)
        chat = chat_of(body)
        plan = await plan_chat(serving, chat)
        formatter = MessageFormatter(serving, request.state.id, plan, body.stop_sequences or ())
        return await respond(serving, request, chat, [plan.prompt], plan.answer_requests, formatter)

    return router


class MessageFormatter(PartWriter):
    """Formats an answer as a message with content blocks.

    Args:
        serving: Served model.
        id: Id of the HTTP request.
        plan: Prompt, parameters and parser of the answer.
        stop_sequences: Texts that end the answer.
    """

    names_events = True

    def __init__(
        self, serving: Serving, id: str, plan: PlannedChat, stop_sequences: Sequence[str]
    ) -> None:
        super().__init__()
        self._model, self._id, self._plan = serving.names[0], id, plan
        self._tokenizer, self._stop_sequences = serving.llm.tokenizer, stop_sequences
        self._reason: str | None = None
        self._stop_sequence: str | None = None

    @property
    def reasoning_tokens(self) -> int:
        """Return the number of reasoning tokens in the answer so far."""
        return self._plan.reasoning_tokens

    def full(self, completions: Sequence[Completion], usage: Usage) -> MessageBody:
        """Return the whole message as one response."""
        self.finish()
        self._end(completions[0])
        return self._body([self._block(part, part.text) for part in self.parts], usage)

    def first(self, index: int, chunk: Chunk) -> list[ServerEvent]:
        """Return the event that starts the message."""
        body = self._body([], None)
        return [event("message_start", message=body.model_dump())]

    def read(self, index: int, chunk: Chunk) -> None:
        """Add a chunk to a message that is not streamed."""
        self.write(self._plan.answers[0].read(chunk))

    def delta(self, index: int, chunk: Chunk) -> list[ServerEvent]:
        """Return the events that stream a chunk of the answer."""
        written = self.write(self._plan.answers[0].read(chunk))
        if chunk.completion is None:
            return written
        self._end(chunk.completion)
        return written + self.finish()

    def last(self, usage: Usage) -> list[ServerEvent]:
        """Return the events that end the message."""
        delta = {"stop_reason": self._reason, "stop_sequence": self._stop_sequence}
        return [
            event("message_delta", delta=delta, usage=_usage(usage)),
            event("message_stop"),
        ]

    def failure(self, error: ApiError) -> BaseModel:
        """Return the event that ends a stream with an error."""
        detail = error.body.error
        return event("error", error={"type": detail.type, "message": detail.message})

    def opened(self, part: Part) -> list[ServerEvent]:
        """Return the event that starts a content block."""
        block = self._block(part, "")
        return [event("content_block_start", index=part.index, content_block=block)]

    def grown(self, part: Part, text: str) -> list[ServerEvent]:
        """Return the event that appends text to a content block."""
        deltas: dict[str, dict[str, str]] = {
            "reasoning": {"type": "thinking_delta", "thinking": text},
            "text": {"type": "text_delta", "text": text},
            "call": {"type": "input_json_delta", "partial_json": text},
        }
        return [event("content_block_delta", index=part.index, delta=deltas[part.kind])]

    def closed(self, part: Part) -> list[ServerEvent]:
        """Return the event that ends a content block."""
        return [event("content_block_stop", index=part.index)]

    def _block(self, part: Part, text: str) -> dict[str, Any]:
        if part.kind == "reasoning":
            return {"type": "thinking", "thinking": text, "signature": ""}
        if part.kind == "text":
            return {"type": "text", "text": text}
        return {
            "type": "tool_use",
            "id": f"toolu_{self._id}_{part.index}",
            "name": part.name,
            "input": _object(text),
        }

    def _end(self, completion: Completion) -> None:
        """Set the message's stop reason, and the stop sequence that ended it, if any."""
        self._reason = _REASONS[self._plan.finish_reason(0, completion.finish_reason)]
        if completion.finish_reason != "stop" or not self._stop_sequences:
            return
        text = self._tokenizer.decode(completion.token_ids, skip_special_tokens=False)
        ends = {text.find(each): each for each in self._stop_sequences if each in text}
        if ends:
            self._reason, self._stop_sequence = "stop_sequence", ends[min(ends)]

    def _body(self, content: list[dict[str, Any]], usage: Usage | None) -> MessageBody:
        return MessageBody(
            id=f"msg_{self._id}",
            model=self._model,
            content=content,
            stop_reason=self._reason,
            stop_sequence=self._stop_sequence,
            usage=_usage(usage, len(self._plan.prompt)),
        )


def _usage(usage: Usage | None, prompt_tokens: int = 0) -> dict[str, int]:
    if usage is None:
        return {"input_tokens": prompt_tokens, "output_tokens": 0}
    return {
        "input_tokens": usage.prompt_tokens,
        "cache_read_input_tokens": usage.prompt_tokens_details.cached_tokens,
        "output_tokens": usage.completion_tokens,
    }


def _object(text: str) -> Any:
    """Parse a JSON object; wrap any other text in an object."""
    try:
        value = json.loads(text or "{}")
    except ValueError:
        value = None
    return value if isinstance(value, dict) else {"invalid_json": text}
