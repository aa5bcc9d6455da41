"""Open the shards of a store as a snapshot, and search it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.datastore import search
from paceline.datastore.fingerprint import fingerprint_of
from paceline.datastore.layout import MANIFEST, Manifest, read_manifest
from paceline.datastore.rows import SHARD
from paceline.datastore.search import Ranges
from paceline.datastore.shard import DamagedShardError, Shard
from paceline.datastore.store_settings import OPEN_ATTEMPTS, SORTED_TOKENS
from paceline.errors import ConfigError, DatastoreError


class Snapshot:
    """The shards of a datastore at one point in time.

    A snapshot never changes, so several threads may search it.

    Args:
        path: Folder of the store, for error messages.
        shards: Shards of the store.
        ids_below: Upper bound (exclusive) on token ids. In searches, a document ends before its
            first token id that is not below the bound. Default 0: no bound.
    Attributes:
        table: SHARD records for the functions in `paceline.datastore.search`, [shards]; valid as
            long as the snapshot exists.
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
        """Find the suffixes of each query in the shards, starting with the longest.

        Args:
            queries: Token ids of each query.
            shortest: Length of the shortest suffix, in tokens; at least 1. Default 1.
            longest: Length of the longest suffix, in tokens; at most 64. Default 32.
            enough: Number of matches after which no shorter suffix is searched. Default 0: no
                limit.
        Raises:
            ConfigError: A length is out of range.
            DatastoreError: A shard is damaged; the error names it.
        """
        if not 1 <= shortest <= longest <= SORTED_TOKENS:
            raise ConfigError(
                f"find: got shortest={shortest}, longest={longest}; expected 1 <= shortest <="
                f" longest <= {SORTED_TOKENS}."
            )
        ids = np.array([token for query in queries for token in query], dtype=np.int64)
        offsets = np.cumsum([0, *map(len, queries)], dtype=np.int64)
        low = np.empty((len(queries), longest, len(self.shards)), dtype=np.int64)
        ranges = Ranges(low, np.empty_like(low), np.empty((len(queries), 2), dtype=np.int64))
        self.check(search.find(self.table, ids, offsets, shortest, enough, ranges))
        return ranges

    def gather(
        self,
        low: NDArray[np.int64],
        high: NDArray[np.int64],
        skip: NDArray[np.int64],
        count: int,
        depth: int,
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the texts that follow the matches of each query.

        A rank is an index in a shard's suffix array. A query's matches in a shard are the suffixes
        in a range of ranks. If a query has more than `count` matches, the method selects matches at
        regular intervals.

        Args:
            low: First rank of each range, [batch, shards]. For query b with matches of m tokens,
                these ranks are `Ranges.low[b, m - 1]`.
            high: Last rank of each range, plus one, [batch, shards].
            skip: Length of each query's matches in tokens, [batch]. A continuation starts directly
                after the match.
            count: Maximum number of continuations per query.
            depth: Maximum number of tokens in a continuation; at most 64. A continuation does not
                extend beyond the end of its document.
        Returns:
            The token ids [batch, count, depth], and the number of ids in each continuation,
            [batch, count]; 0 for missing continuations.
        Raises:
            DatastoreError: A shard is damaged; the error names it.
        """
        out = np.zeros((len(low), count, depth), dtype=np.int64)
        lengths = np.empty((len(low), count), dtype=np.int64)
        self.check(search.gather(self.table, low, high, skip, out, lengths))
        return out, lengths

    def check(self, result: int) -> None:
        """Raise an error if a search function has found a damaged shard.

        Args:
            result: Result of the search: -1, or the index of a damaged shard.
        Raises:
            DatastoreError: A shard is damaged; the error names it.
        """
        if result >= 0:
            raise DamagedShardError(
                self.path, self.shards[result].info.name, "a page that was needed is damaged"
            )


def open_shards(path: Path, known: dict[str, Shard]) -> tuple[Manifest, tuple[Shard, ...]]:
    """Open the shards that the manifest currently lists.

    Args:
        path: Folder of the store.
        known: Shards that are already open and are reused, by name.
    Raises:
        DatastoreError: The store does not exist or is damaged.
    """
    for _ in range(OPEN_ATTEMPTS):
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
                f"the store {str(path)!r} cannot be read: {error}. Check its permissions."
            ) from error
        return manifest, shards
    raise DamagedShardError(path, missing, f"{MANIFEST} lists it, but the file is missing")


def check_tokenizer(path: Path, known: str | None, tokenizer: Any) -> None:
    """Check that a store and the searched ids have the same tokenizer.

    The check succeeds if one of the tokenizers is unknown.

    Args:
        path: Folder of the store.
        known: Fingerprint of the store's tokenizer; None if it is unknown.
        tokenizer: Tokenizer of the searched ids, or the tokenizer's fingerprint; None if the
            tokenizer is unknown.
    Raises:
        DatastoreError: The tokenizers differ; the error shows both fingerprints.
    """
    # Computing the fingerprint of a large vocabulary takes up to a second.
    wanted = None if known is None else fingerprint_of(tokenizer)
    if wanted not in (None, known):
        raise DatastoreError(
            f"store {str(path)!r}, built with the tokenizer {known}: got the tokenizer {wanted},"
            " whose ids stand for different text; expected the same tokenizer. Build a store"
            " with this tokenizer: paceline datastore build PATH FILE --tokenizer DIRECTORY"
        )


def check_same(path: Path, manifest: Manifest, vocab_size: int, tokenizer: str | None) -> None:
    """Check that an open store has not been replaced by a different one.

    Args:
        path: Folder of the store.
        manifest: Current manifest of the folder.
        vocab_size: Vocabulary size of the open store.
        tokenizer: Fingerprint of the open store's tokenizer, or None.
    Raises:
        DatastoreError: The vocabularies or tokenizers differ.
    """
    if (manifest.vocab_size, manifest.tokenizer) != (vocab_size, tokenizer):
        raise DatastoreError(
            f"the store {str(path)!r} was replaced by a store with a different vocabulary or"
            " tokenizer. Open it again."
        )
