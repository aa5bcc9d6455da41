"""The text of a stream: per token, nothing of a stop string, nothing that could still change."""

from __future__ import annotations

from typing import Any, NamedTuple

from paceline.engine.detokenizer import Detokenizer
from paceline.engine.drafter import Outcome
from paceline.engine.origin import Origin
from paceline.engine.text import StopStrings


class Mark(NamedTuple):
    """Which token a piece of text belongs to. Attributes:

    step: of the answer, from 1 on. place: of the token in that step. origin: where it came from.
    """

    step: int
    place: int
    origin: Origin


class Writer:
    """Turns the tokens of a stream into text.

    Args:
        tokenizer: None = there is no text.
    Attributes:
        step: how many steps have been written.
    """

    def __init__(self, tokenizer: Any, stop: StopStrings | None) -> None:
        self._detokenizer = None if tokenizer is None else Detokenizer(tokenizer)
        self._stop = stop
        self._held: list[tuple[str, Mark]] = []  # pieces that may be part of a stop string
        self.step = 0

    def write(self, token_ids: list[int], origins: list[Origin], last: bool) -> list[tuple[str, Mark]]:
        """Take in a step, and return the pieces of text that are certain now."""
        self.step += 1
        if self._detokenizer is None:
            return []
        pieces = self._held
        for place, (token, origin) in enumerate(zip(token_ids, origins, strict=True)):
            pieces.append((self._detokenizer.push(token), Mark(self.step, place, origin)))
        if last:
            pieces.append((self._detokenizer.flush(), Mark(self.step, max(0, len(token_ids) - 1), Origin.TARGET)))
        pieces = [(text, mark) for text, mark in pieces if text]
        if self._stop is None:
            self._held = []
            return pieces
        text = "".join(piece for piece, _ in pieces)
        certain = len(self._stop.cut(text)) if last else len(text) - self._stop.held_back(text)
        ready, self._held = _split(pieces, certain)
        return ready


def origins_of(outcome: Outcome) -> list[Origin]:
    """Return where the new tokens of a step came from."""
    known = outcome.tree.origins
    drafted = [Origin.DRAFT if known is None else Origin(known[node]) for node in outcome.accepted]
    new = len(outcome.new_token_ids)
    return [*drafted[:new], *[Origin.TARGET] * (new - len(drafted))]


def _split(pieces: list[tuple[str, Mark]], length: int) -> tuple[list[tuple[str, Mark]], list[tuple[str, Mark]]]:
    """Cut a list of pieces after `length` characters."""
    head, tail = [], []
    for text, mark in pieces:
        if length > 0:
            head.append((text[:length], mark))
        if text[max(0, length) :]:
            tail.append((text[max(0, length) :], mark))
        length -= len(text)
    return head, tail
