"""Index the occurrences of every n-gram of a growing text, for prompt lookup."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple


class Continuation(NamedTuple):
    """The tokens that followed an earlier occurrence of an n-gram.

    Attributes:
        tokens: Tokens after the n-gram.
        matched: Length of the n-gram in tokens; 0 if none was found.
        position: Text position of the first token in `tokens`.
    """

    tokens: list[int]
    matched: int
    position: int


class NgramIndex:
    """Indexes all positions of each n-gram in a text, and finds the latest one first.

    Args:
        min_ngram: Length of the shortest indexed n-gram, in tokens.
        max_ngram: Length of the longest indexed n-gram, in tokens. The longest n-gram is looked up
            first.
    """

    def __init__(self, min_ngram: int, max_ngram: int) -> None:
        self._sizes = range(max_ngram, min_ngram - 1, -1)
        self._latest: dict[tuple[int, ...], int] = {}
        # By n-gram size, then by end position: the n-gram's previous end position, or -1.
        self._before: dict[int, list[int]] = {size: [] for size in self._sizes}
        self._indexed = 0  # all n-grams that end before this position are indexed

    def update(self, tokens: list[int]) -> None:
        """Index the tokens appended to the text since the previous call."""
        for end in range(self._indexed, len(tokens) - 1):
            for size, before in self._before.items():
                ngram = tuple(tokens[end + 1 - size : end + 1]) if size <= end + 1 else ()
                before.append(self._latest.get(ngram, -1))
                if ngram:
                    self._latest[ngram] = end
        self._indexed = max(self._indexed, len(tokens) - 1)

    def continuation(self, tokens: list[int], length: int) -> Continuation:
        """Return the tokens after the best earlier match of the text's newest tokens.

        Args:
            tokens: Indexed text, possibly followed by more tokens.
            length: Maximum number of tokens to return.
        """
        return next(self.continuations(tokens, length), Continuation([], 0, 0))

    def continuations(self, tokens: list[int], length: int) -> Iterator[Continuation]:
        """Yield the tokens after each earlier match, longest first, then newest first.

        Args:
            tokens: Indexed text, possibly followed by more tokens.
            length: Maximum number of tokens in a continuation.
        """
        seen = set()
        for size in self._sizes:
            position = self._latest.get(tuple(tokens[-size:]), -1) if size < len(tokens) else -1
            while position >= 0:
                if position not in seen:
                    seen.add(position)
                    yield Continuation(
                        tokens[position + 1 : position + 1 + length], size, position + 1
                    )
                position = self._before[size][position]
