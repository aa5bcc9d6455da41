"""An index of where every n-gram of a growing text occurred: for prompt lookup, and for what
speeds up a draft model.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple


class Continuation(NamedTuple):
    """What followed an n-gram. Attributes:

    tokens: that followed. matched: tokens of the n-gram; 0 = none was found. place: of the first of
    `tokens` in the text.
    """

    tokens: list[int]
    matched: int
    place: int


class NgramIndex:
    """Holds the places of every n-gram of one text that something follows, the latest first.

    Args:
        min_ngram: tokens of the shortest n-gram.
        max_ngram: tokens of the longest, which is looked up first.
    """

    def __init__(self, min_ngram: int, max_ngram: int) -> None:
        self._sizes = range(max_ngram, min_ngram - 1, -1)
        self._latest: dict[tuple[int, ...], int] = {}
        # By size and by the place where an n-gram ends: where it ended before that, or -1.
        self._before: dict[int, list[int]] = {size: [] for size in self._sizes}
        self._indexed = 0  # n-grams ending before this place are in

    def update(self, tokens: list[int]) -> None:
        """Take in what was appended to the text since the last call."""
        for end in range(self._indexed, len(tokens) - 1):
            for size, before in self._before.items():
                ngram = tuple(tokens[end + 1 - size : end + 1]) if size <= end + 1 else ()
                before.append(self._latest.get(ngram, -1))
                if ngram:
                    self._latest[ngram] = end
        self._indexed = max(self._indexed, len(tokens) - 1)

    def continuation(self, tokens: list[int], length: int) -> Continuation:
        """Return up to `length` tokens that followed the latest earlier occurrence of the longest
        matching suffix of `tokens`.

        Args:
            tokens: the indexed text, and possibly more behind it.
        """
        return next(self.continuations(tokens, length), Continuation([], 0, 0))

    def continuations(self, tokens: list[int], length: int) -> Iterator[Continuation]:
        """Yield what followed each earlier occurrence of a suffix of `tokens`: of the longest
        first, of these the latest.
        """
        seen = set()
        for size in self._sizes:
            place = self._latest.get(tuple(tokens[-size:]), -1) if size < len(tokens) else -1
            while place >= 0:
                if place not in seen:
                    seen.add(place)
                    yield Continuation(tokens[place + 1 : place + 1 + length], size, place + 1)
                place = self._before[size][place]
