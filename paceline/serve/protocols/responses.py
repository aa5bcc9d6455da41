"""Serve the endpoint /v1/responses, in the format of OpenAI's Responses API."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from paceline.llm import Chunk, Completion
from paceline.serve.chat_plan import PlannedChat, plan_chat
from paceline.serve.errors import ApiError
from paceline.serve.protocols.parts import Part, PartWriter, ServerEvent, event
from paceline.serve.protocols.responses_request import ResponsesRequest, chat_of, messages_of
from paceline.serve.requests import ChatRequest
from paceline.serve.responding import EVENTS, respond
from paceline.serve.responses import Usage
from paceline.serve.serving import Serving

Item = dict[str, Any]


class ResponseStore:
    """Stores the conversations of recent responses, which new requests may continue.

    Args:
        max_responses: Maximum number of stored responses; the store drops the oldest first.
    """

    def __init__(self, max_responses: int) -> None:
        self._max_responses = max_responses
        self._messages: OrderedDict[str, list[Item]] = OrderedDict()

    def earlier(self, id: str | None) -> list[Item]:
        """Return the conversation up to and including a stored response.

        Args:
            id: Id of the response; None returns an empty conversation.
        Raises:
            ApiError: The response is not stored.
        """
        if id is None:
            return []
        if id not in self._messages:
            raise ApiError(
                404,
                f"previous_response_id: {id[:60]!r} is not stored. Send the whole conversation as"
                " input.",
                "previous_response_id",
                "previous_response_not_found",
            )
        return self._messages[id]

    def add(self, id: str, messages: list[Item]) -> None:
        """Store a conversation under the id of the response that ends it."""
        self._messages[id] = messages
        while len(self._messages) > self._max_responses:
            self._messages.popitem(last=False)


class ResponseBody(BaseModel):
    """Body of a response from /v1/responses."""

    id: str
    object: str = "response"
    created_at: int
    model: str
    status: str
    output: list[Item]
    usage: dict[str, Any] | None = None
    error: dict[str, Any] | None = None
    incomplete_details: dict[str, str] | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    metadata: dict[str, str] | None = None
    parallel_tool_calls: bool = True
    temperature: float | None = None
    top_p: float | None = None
    tool_choice: Any = "auto"
    tools: list[Any] = []


def response_routes(serving: Serving) -> APIRouter:
    """Build the route of the endpoint /v1/responses."""
    router = APIRouter()
    store = ResponseStore(serving.settings.max_stored_responses)

    @router.post(
        "/v1/responses",
        response_model=None,
        responses={200: {"model": ResponseBody, **EVENTS}},
    )
    async def create_response(body: ResponsesRequest, request: Request) -> Response:
        """Generate a response to the input items."""
        serving.check_model(body.model)
        earlier = store.earlier(body.previous_response_id)
        chat = chat_of(body, earlier)
        plan = await plan_chat(serving, chat)
        formatter = ItemFormatter(serving.names[0], request.state.id, plan, body, store)
        formatter.earlier = _without_instructions(chat, body)
        return await respond(serving, request, chat, [plan.prompt], plan.answer_requests, formatter)

    return router


def _without_instructions(chat: ChatRequest, body: ResponsesRequest) -> list[Item]:
    messages: list[Item] = chat.messages
    return messages if body.instructions is None else messages[1:]


class ItemFormatter(PartWriter):
    """Formats an answer as the output items of a response.

    Args:
        model: Name of the model.
        id: Id of the HTTP request.
        plan: Prompt, parameters and parser of the answer.
        body: Body of the request.
        store: Store that receives the conversation when the answer is complete.
    Attributes:
        earlier: Messages of the conversation before the answer, without the instructions.
    """

    names_events = True

    def __init__(
        self, model: str, id: str, plan: PlannedChat, body: ResponsesRequest, store: ResponseStore
    ) -> None:
        super().__init__()
        self._model, self._id, self._plan, self._body = model, id, plan, body
        self._store, self._created = store, int(time.time())
        self._reason, self._sequence = "stop", 0
        self.earlier: list[Item] = []

    @property
    def reasoning_tokens(self) -> int:
        """Return the number of reasoning tokens in the answer so far."""
        return self._plan.reasoning_tokens

    def full(self, completions: Sequence[Completion], usage: Usage) -> ResponseBody:
        """Return the whole response, and store the conversation."""
        self.finish()
        self._reason = completions[0].finish_reason
        return self._finished(usage)

    def first(self, index: int, chunk: Chunk) -> list[ServerEvent]:
        """Return the events that start the response."""
        body = self._response("in_progress", [], None).model_dump()
        return [
            self._event("response.created", response=body),
            self._event("response.in_progress", response=body),
        ]

    def read(self, index: int, chunk: Chunk) -> None:
        """Add a chunk to the output items of a response that is not streamed."""
        self.write(self._plan.answers[0].read(chunk))

    def delta(self, index: int, chunk: Chunk) -> list[ServerEvent]:
        """Return the events that stream a chunk of the answer."""
        written = self.write(self._plan.answers[0].read(chunk))
        if chunk.completion is None:
            return written
        self._reason = chunk.completion.finish_reason
        return written + self.finish()

    def last(self, usage: Usage) -> list[ServerEvent]:
        """Return the final event, which contains the whole response."""
        body = self._finished(usage)
        return [self._event(f"response.{body.status}", response=body.model_dump())]

    def failure(self, error: ApiError) -> BaseModel:
        """Return the event that ends a stream with an error."""
        detail = error.body.error
        return self._event(
            "error", code=detail.code or detail.type, message=detail.message, param=detail.param
        )

    def opened(self, part: Part) -> list[ServerEvent]:
        """Return the events that start an output item."""
        item = self._item(part, "in_progress", "")
        events = [self._event("response.output_item.added", output_index=part.index, item=item)]
        if part.kind == "text":
            events.append(
                self._part_event("response.content_part.added", part, part=_text_part(""))
            )
        return events

    def grown(self, part: Part, text: str) -> list[ServerEvent]:
        """Return the event that appends text to an output item."""
        fields: dict[str, Any] = {"logprobs": []} if part.kind == "text" else {}
        return [self._part_event(f"{_NAMES[part.kind]}.delta", part, delta=text, **fields)]

    def closed(self, part: Part) -> list[ServerEvent]:
        """Return the events that finish an output item."""
        fields: dict[str, Any] = {"logprobs": []} if part.kind == "text" else {}
        fields["arguments" if part.kind == "call" else "text"] = part.text
        if part.kind == "call":
            fields["name"] = part.name
        events = [self._part_event(f"{_NAMES[part.kind]}.done", part, **fields)]
        if part.kind == "text":
            text_part = _text_part(part.text)
            events.append(self._part_event("response.content_part.done", part, part=text_part))
        item = self._item(part, "completed", part.text)
        return [
            *events,
            self._event("response.output_item.done", output_index=part.index, item=item),
        ]

    def _event(self, type: str, **fields: Any) -> ServerEvent:
        self._sequence += 1
        return event(type, sequence_number=self._sequence - 1, **fields)

    def _part_event(self, type: str, of: Part, **fields: Any) -> ServerEvent:
        at = {} if of.kind == "call" else {"content_index": 0}
        item_id = self._item_id(of)
        return self._event(type, item_id=item_id, output_index=of.index, **at, **fields)

    def _item_id(self, part: Part) -> str:
        prefix = {"reasoning": "rs", "text": "msg", "call": "fc"}[part.kind]
        return f"{prefix}_{self._id}_{part.index}"

    def _item(self, part: Part, status: str, text: str) -> Item:
        item: Item = {"id": self._item_id(part), "status": status}
        if part.kind == "call":
            call_id = f"call_{self._id}_{part.index}"
            fields = {"call_id": call_id, "name": part.name, "arguments": text}
            return {"type": "function_call", **item, **fields}
        if part.kind == "reasoning":
            content = [{"type": "reasoning_text", "text": text}] if text else []
            return {"type": "reasoning", **item, "summary": [], "content": content}
        content = [_text_part(text)] if status == "completed" else []
        return {"type": "message", **item, "role": "assistant", "content": content}

    def _finished(self, usage: Usage) -> ResponseBody:
        items = [self._item(part, "completed", part.text) for part in self.parts]
        body = self._response(
            "incomplete" if self._reason == "length" else "completed", items, usage
        )
        if self._body.store is not False:
            self._store.add(body.id, [*self.earlier, *messages_of(items)])
        return body

    def _response(self, status: str, output: list[Item], usage: Usage | None) -> ResponseBody:
        body = self._body
        is_cut = status == "incomplete"
        return ResponseBody(
            id=f"resp_{self._id}",
            created_at=self._created,
            model=self._model,
            status=status,
            output=output,
            usage=None if usage is None else _usage(usage),
            incomplete_details={"reason": "max_output_tokens"} if is_cut else None,
            instructions=body.instructions,
            previous_response_id=body.previous_response_id,
            metadata=body.metadata or {},
            parallel_tool_calls=body.parallel_tool_calls is not False,
            temperature=body.temperature,
            top_p=body.top_p,
            tool_choice=body.tool_choice or "auto",
            tools=body.tools or [],
        )


_NAMES = {
    "reasoning": "response.reasoning_text",
    "text": "response.output_text",
    "call": "response.function_call_arguments",
}


def _text_part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _usage(usage: Usage) -> dict[str, Any]:
    cached = usage.prompt_tokens_details.cached_tokens
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {
            "reasoning_tokens": usage.completion_tokens_details.reasoning_tokens
        },
        "total_tokens": usage.total_tokens,
    }
