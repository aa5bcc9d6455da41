"""Save phrase pools to files, and load them from files."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np

from paceline.drafters.shared.ngram_pool import Ngram, NgramPool
from paceline.drafters.shared.state_file import FileKind, StateFile
from paceline.text.token_ids import is_padded

_KIND = FileKind(
    "paceline phrase pool",
    "1",
    ("key_lengths", "keys", "phrases_per_key", "phrase_lengths", "phrases"),  # each [count], int32
    "Delete it or name another file, or begin with an empty pool (on_invalid_file=reset).",
)


class PoolFile(StateFile):
    """Saves a phrase pool to a file, and loads it.

    Args:
        path: Path of the pool file.
        pool: Pool to fill from the file.
        max_length: Maximum number of tokens in a phrase; longer phrases in the file are cut.
        vocab_size: Number of rows in the draft model's LM head. The number stored in the file may
            differ from `vocab_size`, but only if the additional rows are padding.
        cold: Whether to start with an empty pool if the file is damaged or invalid.
    Raises:
        ConfigError: The file is damaged or invalid, or its folder does not exist.
    """

    def __init__(
        self, path: str, pool: NgramPool, max_length: int, vocab_size: int, cold: bool
    ) -> None:
        super().__init__(path, cold)
        self.pool, self._vocab_size = pool, vocab_size
        for key, phrases in self.load(lambda entries: read_pool(entries, vocab_size)) or ():
            for phrase in phrases:
                pool.insert(key, phrase[:max_length])

    def check_ids(self, ids: int) -> None:
        """Raise an error if the pool contains token ids outside the target's vocabulary.

        Args:
            ids: Number of rows in the target's LM head; valid token ids are smaller.
        Raises:
            ConfigError: The pool contains an id greater than or equal to `ids`; the message
                contains the highest id.
        """
        highest = max(
            (
                token
                for key, phrases in self.pool.items()
                for ngram in (key, *phrases)
                for token in ngram
            ),
            default=-1,
        )
        if highest >= ids:
            _KIND.refuse(
                self.path, f"ids up to {highest}", f"ids below {ids}, the rows of the target"
            )

    def content(self) -> bytes:
        """Return the current pool in the format of the pool file."""
        return pool_bytes(self.pool, self._vocab_size)


def pool_bytes(pool: NgramPool, vocab_size: int) -> bytes:
    """Return a pool in the format of the pool file, with the oldest entries first.

    Args:
        pool: Pool to save.
        vocab_size: Number of rows in the draft model's LM head.
    """
    entries = list(pool.items())
    phrases = [phrase for _, entries in entries for phrase in entries]
    columns = (
        [len(key) for key, _ in entries],
        [token for key, _ in entries for token in key],
        [len(entries) for _, entries in entries],
        [len(phrase) for phrase in phrases],
        [token for phrase in phrases for token in phrase],
    )
    arrays = {
        name: np.asarray(column, dtype=np.int32)
        for name, column in zip(_KIND.arrays, columns, strict=True)
    }
    return _KIND.to_bytes(arrays, vocab_size=str(vocab_size))


def read_pool(path: Path, vocab_size: int) -> list[tuple[Ngram, list[Ngram]]]:
    """Read the keys and phrases of a pool file, in the saved order.

    Keys and phrases are skipped if they contain a token id greater than or equal to `vocab_size`.

    Args:
        path: Path of the pool file.
        vocab_size: Number of rows in the draft model's LM head. The number stored in the file may
            differ from `vocab_size`, but only if the additional rows are padding.
    Raises:
        ConfigError: The file is unreadable or damaged, is not a pool file of this version, or was
            written for a different vocabulary.
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
    """Yield the keys and phrases that contain only token ids below `ids`."""
    for key, phrases in entries:
        if all(token < ids for token in key):
            yield key, [phrase for phrase in phrases if all(token < ids for token in phrase)]


def _cut(tokens: Any, lengths: Any) -> list[Ngram]:
    flat, ends = tokens.tolist(), accumulate(lengths.tolist(), initial=0)
    return [tuple(flat[start:end]) for start, end in pairwise(ends)]
