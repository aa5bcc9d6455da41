"""Parse an answer token by token."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from paceline.parsing.events import AnswerEvent, AssistantMessage, joined
from paceline.parsing.parser import AnswerParser


class AnswerToken(NamedTuple):
    """A token of an answer, together with its text.

    Attributes:
        text: Text of the token.
        token: Token id; -1 if unknown.
        position: Index of the token in the answer, starting from 0.
    """

    text: str
    token: int
    position: int


class AnswerReader:
    """Passes the text of an answer to its parser, omitting hidden special tokens.

    Args:
        parser: Parser of the answer.
        hidden: Ids of special tokens to omit.
    Attributes:
        message: Message parsed from the answer so far.
        reasoning_tokens: Number of tokens in the reasoning so far, including its markers.
    """

    def __init__(self, parser: AnswerParser, hidden: Collection[int]) -> None:
        self._parser, self._hidden = parser, hidden
        self.message = AssistantMessage()
        self.reasoning_tokens = 0
        self._num_tokens = 0

    def read(self, pieces: Iterable[AnswerToken], last: bool) -> list[AnswerEvent]:
        """Parse more tokens, and return the events that later tokens cannot change.

        Args:
            pieces: Next tokens of the answer, in order; tokens without text may be omitted.
            last: Whether the answer ends with these tokens.
        """
        events: list[AnswerEvent] = []
        for piece in pieces:
            reasons = self._parser.in_reasoning
            if piece.token not in self._hidden:
                events += self._parser.feed(piece.text)
            if reasons or self._parser.in_reasoning:
                self.reasoning_tokens += max(0, piece.position + 1 - self._num_tokens)
            self._num_tokens = max(self._num_tokens, piece.position + 1)
        if last:
            events += self._parser.finish()
        events = joined(events)
        self.message.add(events)
        return events
