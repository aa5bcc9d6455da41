"""Split the events of an answer into parts: reasoning, text and tool calls."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from paceline.errors import ConfigError
from paceline.parsing.events import (
    AnswerEvent,
    ArgumentsText,
    CallStart,
    ContentText,
    ReasoningText,
)
from paceline.serve.requests import ChatRequest

Kind = Literal["reasoning", "text", "call"]


class ServerEvent(BaseModel):
    """A server-sent event: its type, and any other fields."""

    model_config = ConfigDict(extra="allow")
    type: str


@dataclass(slots=True)
class Part:
    """A part of an answer: reasoning, text or a tool call.

    Attributes:
        index: Index of the part in the answer.
        kind: "reasoning", "text" or "call" (a tool call).
        name: Name of the called function; empty unless the part is a tool call.
        text: Text of the part; for a tool call, the arguments as JSON text.
    """

    index: int
    kind: Kind
    name: str = ""
    text: str = ""


class PartWriter:
    """Splits an answer into parts, and writes the protocol's events for them.

    Each protocol defines a subclass with its own events.

    Attributes:
        parts: Parts of the answer so far; the last one may be unfinished.
    """

    def __init__(self) -> None:
        self.parts: list[Part] = []
        self._is_open = False

    def opened(self, part: Part) -> list[ServerEvent]:
        """Return the events that start a part of the answer."""
        raise NotImplementedError

    def grown(self, part: Part, text: str) -> list[ServerEvent]:
        """Return the events that append text to a part of the answer."""
        raise NotImplementedError

    def closed(self, part: Part) -> list[ServerEvent]:
        """Return the events that end a part of the answer."""
        raise NotImplementedError

    def write(self, events: Iterable[AnswerEvent]) -> list[ServerEvent]:
        """Convert the parser's events for one chunk to events of the protocol."""
        written: list[ServerEvent] = []
        for event in events:
            match event:
                case CallStart(_, name):
                    written += self._begin("call", name)
                case ArgumentsText(_, text):
                    written += self._grow(text)
                case ContentText(text):
                    written += self._continue("text") + self._grow(text)
                case ReasoningText(text):
                    written += self._continue("reasoning") + self._grow(text)
        return written

    def finish(self) -> list[ServerEvent]:
        """Return the events that end the last part of the answer.

        If the answer is empty, the events start and end an empty text part.
        """
        written = [] if self.parts else self._begin("text", "")
        return written + self._close()

    def _continue(self, kind: Kind) -> list[ServerEvent]:
        is_same = self._is_open and self.parts[-1].kind == kind
        return [] if is_same else self._begin(kind, "")

    def _begin(self, kind: Kind, name: str) -> list[ServerEvent]:
        written = self._close()
        self.parts.append(Part(len(self.parts), kind, name))
        self._is_open = True
        return written + self.opened(self.parts[-1])

    def _grow(self, text: str) -> list[ServerEvent]:
        self.parts[-1].text += text
        return self.grown(self.parts[-1], text)

    def _close(self) -> list[ServerEvent]:
        was_open, self._is_open = self._is_open, False
        return self.closed(self.parts[-1]) if was_open else []


def checked_chat(fields: Mapping[str, Any]) -> ChatRequest:
    """Build a chat request from its fields, and validate the fields.

    Raises:
        ConfigError: A field is invalid.
    """
    try:
        return ChatRequest.model_validate(fields)
    except ValidationError as error:
        first = error.errors()[0]
        raise ConfigError(f"{first['loc'][0]}: {first['msg']}. Correct it.") from error


def event(type: str, **fields: Any) -> ServerEvent:
    """Build a server-sent event with the given type and fields."""
    return ServerEvent(type=type, **fields)
