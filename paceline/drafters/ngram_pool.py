"""The n-gram pool of Lookahead Decoding (Fu et al. 2024, section 3.2): continuations by the tokens they followed.

A key is the tuple of one or more tokens before the continuation. Under each key lie at most `size` continuations; one that
is inserted again becomes the newest, and the oldest makes room.
"""

from __future__ import annotations

from collections.abc import Iterator

Ngram = tuple[int, ...]


class NgramPool:
    """Continuations by key.

    Args:
        size: most continuations kept per key.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._entries: dict[Ngram, dict[Ngram, None]] = {}  # dicts keep their order: oldest first

    def insert(self, key: Ngram, ngram: Ngram) -> None:
        """Make `ngram` the newest continuation of `key`."""
        entries = self._entries.setdefault(key, {})
        if ngram in entries:
            del entries[ngram]
        elif len(entries) >= self._size:
            del entries[next(iter(entries))]
        entries[ngram] = None

    def discard(self, key: Ngram, ngram: Ngram) -> None:
        """Forget a continuation of `key`, if it is there."""
        self._entries.get(key, {}).pop(ngram, None)

    def newest_first(self, key: Ngram) -> Iterator[Ngram]:
        """Continuations of `key`."""
        return reversed(self._entries.get(key, {}))

    def __len__(self) -> int:
        return sum(map(len, self._entries.values()))
