"""The text of a stream: per token, nothing of a stop string, nothing that could still change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from paceline.core.drafter import Outcome
from paceline.core.origin import Origin
from paceline.text.stop_strings import Piece, StopStrings, Texts


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
        prompt_ids, skip_special_tokens: as `Detokenizer`.
        stop: the stop strings of the answer, whose text is cut before them.
    Attributes:
        step: how many steps have been written.
    """

    def __init__(
        self,
        tokenizer: Any,
        prompt_ids: Sequence[int],
        stop: StopStrings | None,
        skip_special_tokens: bool = True,
    ) -> None:
        self._texts: Texts | None = None
        if tokenizer is not None:
            self._texts = (
                Texts(tokenizer, prompt_ids, skip_special_tokens, full=False)
                if stop is None
                else stop.texts()
            )
        self._stop = stop
        self._held: list[tuple[Piece, Mark]] = []  # what may be part of a stop string
        self._returned: list[str] = []
        self.step = 0

    @property
    def text(self) -> str:
        """All text that was returned so far."""
        return "".join(self._returned)

    def write(
        self, token_ids: list[int], origins: list[Origin], last: bool
    ) -> list[tuple[str, Mark]]:
        """Take in a step, and return the pieces of text that are certain now."""
        self.step += 1
        if self._texts is None:
            return []
        pieces = self._held
        for place, (token, origin) in enumerate(zip(token_ids, origins, strict=True)):
            pieces.append((self._texts.push(token), Mark(self.step, place, origin)))
        if last:
            pieces.append(
                (self._texts.rest(), Mark(self.step, max(0, len(token_ids) - 1), Origin.TARGET))
            )
        certain, self._held = self._sorted(pieces, last)
        written = [(piece.shown, mark) for piece, mark in certain if piece.shown]
        self._returned += [text for text, _ in written]
        return written

    def _sorted(
        self, pieces: list[tuple[Piece, Mark]], last: bool
    ) -> tuple[list[tuple[Piece, Mark]], list[tuple[Piece, Mark]]]:
        """The pieces that are certain, and those that are not."""
        if self._stop is None:
            return pieces, []
        texts = [piece for piece, _ in pieces]
        return (
            (_cut(pieces, self._stop.cut(texts)), [])
            if last
            else _split(pieces, self._stop.certain(texts))
        )


def origins_of(outcome: Outcome) -> list[Origin]:
    """Return where the new tokens of a step came from."""
    known = outcome.tree.origins
    drafted = [Origin.DRAFT if known is None else Origin(known[node]) for node in outcome.accepted]
    new = len(outcome.new_token_ids)
    return [*drafted[:new], *[Origin.TARGET] * (new - len(drafted))]


def _split(
    pieces: list[tuple[Piece, Mark]], length: int
) -> tuple[list[tuple[Piece, Mark]], list[tuple[Piece, Mark]]]:
    """Cut a list of pieces after `length` characters of the full text."""
    head, tail = [], []
    for piece, mark in pieces:
        shown, full = piece
        if length <= 0:
            tail.append((piece, mark))
        elif length >= len(full):
            head.append((piece, mark))
        else:
            place = max(0, length - len(full) + len(shown))
            head.append((Piece(shown[:place], full[:length]), mark))
            tail.append((Piece(shown[place:], full[length:]), mark))
        length -= len(full)
    return head, tail


def _cut(pieces: list[tuple[Piece, Mark]], length: int | None) -> list[tuple[Piece, Mark]]:
    """The pieces of the first `length` characters that are shown; None = all."""
    if length is None:
        return pieces
    kept = []
    for piece, mark in pieces:
        kept.append((Piece(piece.shown[: max(0, length)], ""), mark))
        length -= len(piece.shown)
    return kept
