"""Rank the tokens of a growing text by frequency, in constant time per token."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class _TokenRank:
    """A token's number of occurrences, and its rank by frequency.

    Attributes:
        times: Number of occurrences of the token.
        rank: Index of the token among all tokens, sorted by frequency; 0 is the most frequent
            token.
        first: Position of the token's first occurrence in the text.
    """

    times: int
    rank: int
    first: int


class Frequencies:
    """Counts the tokens of one text, and sorts them by frequency.

    The order of equally frequent tokens is arbitrary, but it is always the same for the same text.
    """

    def __init__(self) -> None:
        self._order: list[int] = []
        self._known: dict[int, _TokenRank] = {}
        # By count: index in the order of the first token with this count. If no token has this
        # count, the index is that of the first token with a lower count.
        self._begin: dict[int, int] = {}
        self._counted = 0  # number of text tokens counted so far

    def update(self, tokens: list[int]) -> None:
        """Count the tokens appended to the text since the previous call."""
        for position in range(self._counted, len(tokens)):
            self._count(tokens[position], position)
        self._counted = len(tokens)

    def most_frequent(self, count: int) -> list[tuple[int, int]]:
        """Return the most frequent tokens, up to `count`, each with its first position."""
        return [(token, self._known[token].first) for token in self._order[:count]]

    def _count(self, token: int, position: int) -> None:
        known = self._known.get(token)
        if known is None:
            known = self._known[token] = _TokenRank(0, len(self._order), position)
            self._order.append(token)
            self._begin[0] = known.rank
        # The token swaps positions with the first of the tokens that had the same count.
        rank = self._begin[known.times]
        other = self._order[rank]
        self._order[known.rank], self._known[other].rank = other, known.rank
        self._order[rank], known.rank = token, rank
        self._begin[known.times] = rank + 1
        known.times += 1
        self._begin.setdefault(known.times, rank)
