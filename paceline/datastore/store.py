"""Reading a store: a snapshot of its shards, searched and refreshed without ever waiting for a
writer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.datastore import search
from paceline.datastore.fingerprint import fingerprint_of
from paceline.datastore.layout import MANIFEST, Manifest, read_manifest
from paceline.datastore.rows import SHARD
from paceline.datastore.shard import DamagedShardError, Shard
from paceline.datastore.store_settings import SORTED
from paceline.errors import ConfigError, DatastoreError

_ATTEMPTS = 10  # a shard may be merged away between reading the manifest and opening it


@dataclass(frozen=True, slots=True)
class Ranges:
    """Where the suffixes of some queries stand.

    Attributes:
        low, high: [batch, longest, shards] ranks of the last m tokens of query b at [b, m - 1]; 0,
            0 = none, or not searched.
        lengths: [batch, 2] the longest suffix that occurs in any shard, and the shortest one
            searched; 0, 0 if none.
    """

    low: NDArray[np.int64]
    high: NDArray[np.int64]
    lengths: NDArray[np.int64]


class Snapshot:
    """Some shards, as they were at one moment. Immutable: searches of several threads may share it.

    Args:
        ids_below: documents end before an id that is not below it; 0 = all ids are read.
    Attributes:
        table: [shards] of SHARD, what the functions of `paceline.datastore.search` take; valid
            while this object lives.
    """

    def __init__(self, path: Path, shards: tuple[Shard, ...], ids_below: int = 0) -> None:
        self.path, self.shards = path, shards
        self.table: NDArray[np.void] = np.array([shard.row for shard in shards], dtype=SHARD)
        if ids_below:
            self.table["vocab_size"] = np.minimum(self.table["vocab_size"], ids_below)

    def find(
        self,
        queries: Sequence[Sequence[int]],
        *,
        shortest: int = 1,
        longest: int = 32,
        enough: int = 0,
    ) -> Ranges:
        """Return the ranges of each query's last tokens, from the longest suffix that occurs down
        to `shortest` tokens.

        Args:
            longest: most tokens of a suffix, up to 64.
            enough: stop shortening when the ranges hold this many suffixes together; 0 = never.
        Raises:
            ConfigError: lengths out of range. DatastoreError: a shard is damaged; it is named.
        """
        if not 1 <= shortest <= longest <= SORTED:
            raise ConfigError(
                f"find: got shortest={shortest}, longest={longest}; expected 1 <= shortest <="
                f" longest <= {SORTED}."
            )
        ids = np.array([token for query in queries for token in query], dtype=np.int64)
        offsets = np.cumsum([0, *map(len, queries)], dtype=np.int64)
        low = np.empty((len(queries), longest, len(self.shards)), dtype=np.int64)
        high, lengths = np.empty_like(low), np.empty((len(queries), 2), dtype=np.int64)
        self.check(search.find(self.table, ids, offsets, shortest, enough, low, high, lengths))
        return Ranges(low, high, lengths)

    def gather(
        self,
        low: NDArray[np.int64],
        high: NDArray[np.int64],
        skip: NDArray[np.int64],
        count: int,
        depth: int,
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Read up to `count` continuations of each query, at regular intervals over its ranges.

        Args:
            low, high: [batch, shards] ranges, a row of `Ranges` for each query.
            skip: [batch] tokens matched, left out of the continuations.
            depth: most tokens of a continuation, up to 64; it ends with its document.
        Returns:
            token ids [batch, count, depth] and their numbers [batch, count]; 0 where there is no
            continuation.
        Raises:
            DatastoreError: a shard is damaged; it is named.
        """
        out = np.zeros((len(low), count, depth), dtype=np.int64)
        lengths = np.empty((len(low), count), dtype=np.int64)
        self.check(search.gather(self.table, low, high, skip, out, lengths))
        return out, lengths

    def check(self, result: int) -> None:
        """Raise for what a search function returned.

        Raises:
            DatastoreError: `result` is the index of a damaged shard.
        """
        if result >= 0:
            raise DamagedShardError(
                self.path, self.shards[result].info.name, "a page that was needed is damaged"
            )


def open_shards(path: Path, known: dict[str, Shard]) -> tuple[Manifest, tuple[Shard, ...]]:
    """Open the shards that the manifest names now; those in `known` (by name) are taken from there.

    Raises:
        DatastoreError: no store, or a damaged one.
    """
    for _ in range(_ATTEMPTS):
        manifest = read_manifest(path)
        try:
            shards = tuple(
                known.get(info.name)
                or Shard.mapped(path, info, manifest.vocab_size, manifest.width)
                for info in manifest.shards
            )
        except FileNotFoundError as error:
            missing = Path(error.filename).name
            continue
        except OSError as error:
            raise DatastoreError(
                f"store {str(path)!r}: got {error}; expected a store that can be read. Check its"
                " rights."
            ) from error
        return manifest, shards
    raise DamagedShardError(path, missing, f"{MANIFEST} names it and it is not there")


def check_tokenizer(path: Path, known: str | None, tokenizer: Any) -> None:
    """Refuse a store of another tokenizer; nothing is said where either is not known.

    Args:
        known: fingerprint of the store's.
    Raises:
        DatastoreError: with both fingerprints.
    """
    # costs up to a second for a large vocabulary
    wanted = None if known is None else fingerprint_of(tokenizer)
    if wanted not in (None, known):
        raise DatastoreError(
            f"store {str(path)!r}, built with the tokenizer {known}: got the tokenizer {wanted},"
            " whose ids mean other text; expected the same. Build one with this tokenizer:"
            " paceline datastore build PATH --tokenizer DIRECTORY ..."
        )
