"""Run a format's generator over the text of an answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from paceline.parsing.events import AnswerEvent, AssistantMessage, EventWriter
from paceline.parsing.text_source import TextSource, Waiting

Schemas = Mapping[str, Mapping[str, Any]]  # JSON schema of the arguments, by name of the tool
ReadAnswer = Callable[[TextSource, EventWriter, Schemas], Waiting]


class AnswerParser(Protocol):
    """Splits the text of one answer into reasoning, content and tool calls.

    The events of all calls add up to the same message, however the text is split.
    """

    def feed(self, text: str) -> list[AnswerEvent]:
        """Add text; return what became certain."""
        ...

    def finish(self) -> list[AnswerEvent]:
        """Return the rest at the end of the answer."""
        ...


class FormatParser:
    """Parser that runs a generator, which reads the text and writes events.

    Args:
        read: Generator function of a format.
        schemas: Schemas of the tools, for formats whose values have no types.
    """

    def __init__(self, read: ReadAnswer, schemas: Schemas) -> None:
        self._source, self._writer = TextSource(), EventWriter()
        self._reading = read(self._source, self._writer, schemas)

    def feed(self, text: str) -> list[AnswerEvent]:
        """Add text; return what became certain."""
        self._source.add(text)
        next(self._reading, None)
        return self._writer.take()

    def finish(self) -> list[AnswerEvent]:
        """Return the rest at the end of the answer."""
        self._source.ended = True
        next(self._reading, None)
        self._writer.finish()
        return self._writer.take()


def parse(parser: AnswerParser, text: str) -> AssistantMessage:
    """Return the message in a complete answer."""
    message = AssistantMessage()
    message.add(parser.feed(text))
    message.add(parser.finish())
    return message
