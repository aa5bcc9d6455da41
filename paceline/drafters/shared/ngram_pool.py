"""Define the n-gram pool of Lookahead Decoding (Fu et al. 2024, section 3.2).

The pool maps a key, which is a tuple of one or two tokens, to the continuations seen after the key.
For example, the text 5 1 2 adds the continuation (1, 2) to the key (5,). The pool stores at most
`size` continuations per key. If a new continuation would exceed this number, the key's oldest
continuation is evicted. A continuation that is inserted again becomes the key's newest one.
"""

from __future__ import annotations

from collections.abc import Iterator

Ngram = tuple[int, ...]


class NgramPool:
    """Stores each n-gram under a key: the one or two tokens that precede it.

    Args:
        size: Maximum number of continuations per key.
        keys: Maximum number of keys; beyond this number, the least recently used key is evicted.
            None means no limit.
        longest_key: Maximum number of tokens in a key: 1 or 2.
    """

    def __init__(self, size: int, keys: int | None = None, longest_key: int = 2) -> None:
        self._size = size
        self._keys = keys
        self._longest_key = longest_key
        self._entries: dict[Ngram, dict[Ngram, None]] = {}  # in order of insertion, oldest first

    def insert(self, key: Ngram, ngram: Ngram) -> None:
        """Make `ngram` the newest continuation of `key`, and evict old entries if needed."""
        if self._keys is None:
            entries = self._entries.setdefault(key, {})
        else:
            entries = self._entries.pop(key, {})
            if len(self._entries) >= self._keys:
                del self._entries[next(iter(self._entries))]
            self._entries[key] = entries
        if ngram in entries:
            del entries[ngram]
        elif len(entries) >= self._size:
            del entries[next(iter(entries))]
        entries[ngram] = None

    def add(self, context: Ngram, ngram: Ngram) -> None:
        """Make `ngram` the newest continuation of `context`.

        The keys for `ngram` are the last token of `context` and, if `longest_key` is 2, also the
        last two tokens.
        """
        for size in range(1, min(len(context), self._longest_key) + 1):
            self.insert(context[-size:], ngram)

    def replace(self, key: Ngram, old: Ngram, new: Ngram) -> None:
        """Replace the continuation `old` of a key with `new`, at the same position.

        If `new` is already a continuation of the key, `old` is only removed. If `old` is not a
        continuation of the key, nothing changes.
        """
        entries = self._entries.get(key, {})
        if old not in entries or old == new:
            return
        if new in entries:
            del entries[old]
        else:
            self._entries[key] = {new if ngram == old else ngram: None for ngram in entries}

    def add_text(self, text: list[int], since: int, size: int) -> None:
        """Add every n-gram of `size` tokens that is not within the first `since` tokens.

        Args:
            text: Token ids of the text.
            since: Number of leading tokens whose n-grams are already in the pool.
            size: Number of tokens in an n-gram, including its one-token key.
        """
        for end in range(max(size, since + 1), len(text) + 1):
            start = end - size
            self.add(tuple(text[max(0, start - 1) : start + 1]), tuple(text[start + 1 : end]))

    def remove(self, context: Ngram, ngram: Ngram) -> None:
        """Remove `ngram` as a continuation of `context`.

        The n-gram is removed from the keys under which `add` stores it.
        """
        for size in range(1, min(len(context), self._longest_key) + 1):
            self.discard(context[-size:], ngram)

    def discard(self, key: Ngram, ngram: Ngram) -> None:
        """Remove a continuation of `key`, if it exists."""
        entries = self._entries.get(key, {})
        entries.pop(ngram, None)
        if not entries:
            self._entries.pop(key, None)

    def newest_first(self, key: Ngram) -> Iterator[Ngram]:
        """Return the continuations of `key`, newest first, and mark the key as used."""
        if self._keys is not None and key in self._entries:
            self._entries[key] = self._entries.pop(key)
        return reversed(self._entries.get(key, {}))

    def items(self) -> Iterator[tuple[Ngram, list[Ngram]]]:
        """Iterate over the keys and their continuations, oldest first.

        If the number of keys is limited, the least recently used key comes first.
        """
        return ((key, list(entries)) for key, entries in self._entries.items())

    def __len__(self) -> int:
        return sum(map(len, self._entries.values()))
