"""Parse an answer token by token."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from paceline.parsing.events import AnswerEvent, AssistantMessage
from paceline.parsing.parser import AnswerParser


class AnswerReader:
    """Passes the text of an answer to its parser, omitting hidden special tokens.

    Args:
        parser: Parser of the answer.
        hidden: Ids of special tokens to omit.
    Attributes:
        message: Message of the answer so far.
    """

    def __init__(self, parser: AnswerParser, hidden: Collection[int]) -> None:
        self._parser, self._hidden = parser, hidden
        self.message = AssistantMessage()

    def read(self, pieces: Iterable[tuple[str, int]], last: bool) -> list[AnswerEvent]:
        """Add text, and return the events that are now certain.

        Args:
            pieces: Fragments of the text, each with the id of its token.
            last: Whether the answer ends with these fragments.
        """
        text = "".join(text for text, token in pieces if token not in self._hidden)
        events = self._parser.feed(text) if text else []
        if last:
            events += self._parser.finish()
        self.message.add(events)
        return events
