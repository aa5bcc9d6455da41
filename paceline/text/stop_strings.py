"""Stop strings: the token with which one is complete, and the text that comes before it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from paceline.text.detokenizer import Decoder, Detokenizer


class Piece(NamedTuple):
    """The text of one token. Attributes:

    shown: in the answer. full: with special tokens written out, which the answer may hide.
    """

    shown: str
    full: str


class Texts:
    """Turns the tokens of an answer into both texts.

    Args:
        tokenizer, prompt_ids, skip_special_tokens: as `Detokenizer`.
        full: False = the full text is not needed, and is the shown one.
    """

    def __init__(
        self,
        tokenizer: Decoder,
        prompt_ids: Sequence[int],
        skip_special_tokens: bool,
        full: bool = True,
    ) -> None:
        self._shown = Detokenizer(tokenizer, prompt_ids, skip_special_tokens)
        hides = full and skip_special_tokens
        self._full = (
            Detokenizer(tokenizer, prompt_ids, skip_special_tokens=False) if hides else None
        )

    def push(self, token: int) -> Piece:
        """Add one token; return the text that became certain."""
        shown = self._shown.push(token)
        return Piece(shown, shown if self._full is None else self._full.push(token))

    def rest(self) -> Piece:
        """Return the text that would end the answer here."""
        shown = self._shown.rest().text
        return Piece(shown, shown if self._full is None else self._full.rest().text)


class StopStrings:
    """The stop strings of one answer.

    A stop string ends the answer with the token that completes it, in the answer's own text or in
    the text with all special tokens written out, as in transformers. It begins in the answer, never
    in the prompt.

    Args:
        stop: at least one.
        tokenizer, prompt_ids, skip_special_tokens: as `Detokenizer`.
    """

    def __init__(
        self,
        stop: Sequence[str],
        tokenizer: Decoder,
        prompt_ids: Sequence[int] = (),
        skip_special_tokens: bool = True,
    ) -> None:
        self._stop = tuple(stop)
        # characters before the newest that a stop string may begin in
        self._before = max(map(len, stop)) - 1
        self._tokenizer, self._prompt_ids, self._skips = (
            tokenizer,
            list(prompt_ids),
            skip_special_tokens,
        )
        self._begin()

    def _begin(self) -> None:
        self._texts = self.texts()
        self._answer: list[int] = []  # the tokens that `ends` has seen
        self._found: int | None = None  # how many of them end with the first stop string
        self._tail = Piece("", "")

    def texts(self) -> Texts:
        """Return both texts of the answer, none of whose tokens has been added yet."""
        return Texts(self._tokenizer, self._prompt_ids, self._skips)

    def ends(self, token_ids: Sequence[int], run: list[int]) -> bool:
        """Whether a stop string is complete with the last token of `run`.

        Args:
            token_ids: the prompt and the answer before `run`. They are read only where they are not
                those of the last call.
        """
        done = len(token_ids) - len(self._prompt_ids)
        known = self._answer[done : done + len(run)]
        if len(self._answer) < done or known != run[: len(known)]:
            self._begin()
            self._add(token_ids[len(self._prompt_ids) :])
            known = []
        self._add(run[len(known) :])
        return self._found is not None and self._found <= done + len(run)

    def _add(self, token_ids: Sequence[int]) -> None:
        for token in token_ids:
            self._answer.append(token)
            if self._completes(self._texts.push(token), self._texts.rest()) and self._found is None:
                self._found = len(self._answer)

    def _completes(self, piece: Piece, rest: Piece) -> bool:
        shown, full = self._tail.shown + piece.shown, self._tail.full + piece.full
        found = self._in(shown + rest.shown) or (full != shown and self._in(full + rest.full))
        self._tail = Piece(
            shown[max(0, len(shown) - self._before) :], full[max(0, len(full) - self._before) :]
        )
        return found

    def _in(self, text: str) -> bool:
        return any(stop in text for stop in self._stop)

    def cut(self, pieces: Sequence[Piece]) -> int | None:
        """How many characters `pieces` show before the earliest stop string; None = there is
        none.
        """
        shown, full = _joined(pieces)
        places = [place for place in map(shown.find, self._stop) if place >= 0]
        if shown != full:
            places += [
                _in_shown(pieces, place) for place in map(full.find, self._stop) if place >= 0
            ]
        return min(places, default=None)

    def certain(self, pieces: Sequence[Piece]) -> int:
        """How many characters of the full text of `pieces` cannot be part of a stop string any
        more.
        """
        shown, full = _joined(pieces)
        certain = len(full) - self.held_back(full)
        if shown != full:
            certain = min(certain, _in_full(pieces, len(shown) - self.held_back(shown)))
        return certain

    def held_back(self, text: str) -> int:
        """How many trailing characters of `text` could be the beginning of a stop string."""
        for size in range(min(self._before, len(text)), 0, -1):
            if any(stop.startswith(text[-size:]) for stop in self._stop):
                return size
        return 0


def _joined(pieces: Sequence[Piece]) -> tuple[str, str]:
    return "".join(piece.shown for piece in pieces), "".join(piece.full for piece in pieces)


def _in_full(pieces: Sequence[Piece], place: int) -> int:
    """Where the full text has the character at `place` of the shown text; behind its end, the
    full text's end.
    """
    start = 0
    for shown, full in pieces:
        if place < len(shown):
            return start + max(0, len(full) - len(shown) + place)
        place, start = place - len(shown), start + len(full)
    return start


def _in_shown(pieces: Sequence[Piece], place: int) -> int:
    """How many characters the shown text has before the character at `place` of the full text."""
    count = 0
    for shown, full in pieces:
        if place < len(full):
            return count + min(len(shown), max(0, place - len(full) + len(shown)))
        place, count = place - len(full), count + len(shown)
    return count
