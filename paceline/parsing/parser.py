"""Parse each answer with the generator function for its format."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from paceline.parsing.events import AnswerEvent, AssistantMessage, EventWriter
from paceline.parsing.text_source import TextSource, Waiting

Schemas = Mapping[str, Mapping[str, Any]]  # from a tool's name to the schema of its arguments
ReadAnswer = Callable[[TextSource, EventWriter, Schemas], Waiting]


class AnswerParser(Protocol):
    """Splits the text of one answer into reasoning, content and tool calls.

    The resulting message does not depend on how the text is split into chunks.
    """

    @property
    def in_reasoning(self) -> bool:
        """Return whether the text received so far ends inside the reasoning."""
        ...

    def feed(self, text: str) -> list[AnswerEvent]:
        """Parse more text, and return the events that later text cannot change."""
        ...

    def finish(self) -> list[AnswerEvent]:
        """End the answer, and return its remaining events."""
        ...


class FormatParser:
    """Parses one answer with a generator that reads its text and writes events.

    Args:
        read: Generator function that parses the format of the model's answers.
        schemas: Argument schemas by tool name. In formats without types or quotes, the schemas
            determine which arguments are strings.
    """

    def __init__(self, read: ReadAnswer, schemas: Schemas) -> None:
        self._source, self._writer = TextSource(), EventWriter()
        self._reading = read(self._source, self._writer, schemas)

    @property
    def in_reasoning(self) -> bool:
        """Return whether the text received so far ends inside the reasoning."""
        return self._writer.in_reasoning

    def feed(self, text: str) -> list[AnswerEvent]:
        """Parse more text, and return the events that later text cannot change."""
        self._source.add(text)
        next(self._reading, None)
        return self._writer.take()

    def finish(self) -> list[AnswerEvent]:
        """End the answer, and return its remaining events."""
        self._source.ended = True
        next(self._reading, None)
        self._writer.finish()
        return self._writer.take()


def parse(parser: AnswerParser, text: str) -> AssistantMessage:
    """Parse a complete answer, and return its message."""
    message = AssistantMessage()
    message.add(parser.feed(text))
    message.add(parser.finish())
    return message
