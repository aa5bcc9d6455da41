"""A phrase pool that outlives its process."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np

from paceline.drafters.shared.ngram_pool import Ngram, NgramPool
from paceline.drafters.shared.state_file import FileKind, StateFile
from paceline.util.token_ids import is_padded

_KIND = FileKind(
    "paceline phrase pool",
    "1",
    ("key_lengths", "keys", "phrases_per_key", "phrase_lengths", "phrases"),  # each [count], int32
    "Delete it or name another file, or begin with an empty pool (on_invalid_file=reset).",
)


class PoolFile(StateFile):
    """A pool and its file.

    Args:
        path, cold: as for `StateFile`.
        pool: filled from the file.
        longest: most tokens of a phrase; longer ones in the file are cut.
        vocab_size: rows of the draft's LM head; the file must have been written for as many, but
            for padding.
    Raises:
        ConfigError: the file is there and cannot be used, or its folder is not there; it says what
            is wrong.
    """

    def __init__(
        self, path: str, pool: NgramPool, longest: int, vocab_size: int, cold: bool
    ) -> None:
        super().__init__(path, cold)
        self.pool, self._vocab_size = pool, vocab_size
        for key, phrases in self.load(lambda found: read_pool(found, vocab_size)) or ():
            for phrase in phrases:
                pool.insert(key, phrase[:longest])

    def check_ids(self, ids: int) -> None:
        """Refuse a file with ids that the target does not have.

        Raises:
            ConfigError: an id is `ids` or above; the highest is named.
        """
        highest = max(
            (
                token
                for key, phrases in self.pool.items()
                for one in (key, *phrases)
                for token in one
            ),
            default=-1,
        )
        if highest >= ids:
            _KIND.refuse(
                self.path, f"ids up to {highest}", f"ids below {ids}, the rows of the target"
            )

    def content(self) -> bytes:
        """Return the pool as it is now."""
        return pool_bytes(self.pool, self._vocab_size)


def pool_bytes(pool: NgramPool, vocab_size: int) -> bytes:
    """Return a pool as the content of a file, keys and phrases in their order."""
    entries = list(pool.items())
    phrases = [phrase for _, found in entries for phrase in found]
    columns = (
        [len(key) for key, _ in entries],
        [token for key, _ in entries for token in key],
        [len(found) for _, found in entries],
        [len(phrase) for phrase in phrases],
        [token for phrase in phrases for token in phrase],
    )
    arrays = {
        name: np.asarray(column, dtype=np.int32)
        for name, column in zip(_KIND.arrays, columns, strict=True)
    }
    return _KIND.to_bytes(arrays, vocab_size=str(vocab_size))


def read_pool(path: Path, vocab_size: int) -> list[tuple[Ngram, list[Ngram]]]:
    """Return keys with their phrases, in the order they were saved, as far as the models have their
    ids.

    Args:
        path: the file.
        vocab_size: rows of the draft's LM head. The file's may differ by padding, of which guesses
            are made at no risk.
    Raises:
        ConfigError: the file cannot be read, is no pool, is damaged, or is of another version or
            vocabulary.
    """
    head, arrays = _KIND.read(path)
    written = int(head["vocab_size"])
    if not is_padded(max(written, vocab_size), min(written, vocab_size)):
        _KIND.check_vocabulary(path, head["vocab_size"], vocab_size)
    keys = _cut(arrays["keys"], arrays["key_lengths"])
    phrases = _cut(arrays["phrases"], arrays["phrase_lengths"])
    ends = accumulate(arrays["phrases_per_key"].tolist(), initial=0)
    entries = [
        (key, phrases[start:end]) for key, (start, end) in zip(keys, pairwise(ends), strict=True)
    ]
    return entries if written <= vocab_size else list(_below(entries, vocab_size))


def _below(
    entries: list[tuple[Ngram, list[Ngram]]], ids: int
) -> Iterator[tuple[Ngram, list[Ngram]]]:
    """Yield those of the keys and phrases whose ids are all below a number."""
    for key, phrases in entries:
        if all(token < ids for token in key):
            yield key, [phrase for phrase in phrases if all(token < ids for token in phrase)]


def _cut(tokens: Any, lengths: Any) -> list[Ngram]:
    flat, ends = tokens.tolist(), accumulate(lengths.tolist(), initial=0)
    return [tuple(flat[start:end]) for start, end in pairwise(ends)]
