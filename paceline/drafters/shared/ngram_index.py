"""An index of where every n-gram of a growing text occurred last: for prompt lookup, and for what speeds up a draft model."""

from __future__ import annotations

from typing import NamedTuple


class Continuation(NamedTuple):
    """What followed an n-gram. Attributes:

    tokens: that followed. matched: tokens of the n-gram; 0 = none was found. place: of the first of `tokens` in the text.
    """

    tokens: list[int]
    matched: int
    place: int


class NgramIndex:
    """Holds the latest place of every n-gram of one text that something follows.

    Args:
        min_ngram: tokens of the shortest n-gram.
        max_ngram: tokens of the longest, which is looked up first.
    """

    def __init__(self, min_ngram: int, max_ngram: int) -> None:
        self._sizes = range(max_ngram, min_ngram - 1, -1)
        self._latest: dict[tuple[int, ...], int] = {}
        self._indexed = 0  # n-grams ending before this place are in

    def update(self, tokens: list[int]) -> None:
        """Take in what was appended to the text since the last call."""
        for end in range(self._indexed, len(tokens) - 1):
            for size in self._sizes:
                if size <= end + 1:
                    self._latest[tuple(tokens[end + 1 - size : end + 1])] = end
        self._indexed = max(self._indexed, len(tokens) - 1)

    def continuation(self, tokens: list[int], length: int) -> Continuation:
        """Return up to `length` tokens that followed the latest earlier occurrence of the longest matching suffix of `tokens`.

        Args:
            tokens: the indexed text, and possibly more behind it.
        """
        for size in self._sizes:
            if size < len(tokens):
                place = self._latest.get(tuple(tokens[-size:]))
                if place is not None:
                    return Continuation(tokens[place + 1 : place + 1 + length], size, place + 1)
        return Continuation([], 0, 0)
