"""REST: draft the most frequent continuations of the newest tokens in a datastore.

He, Zhong, Cai, Lee, He 2023, "REST: Retrieval-Based Speculative Decoding" (authors' code:
FasterDecoding/REST). The drafter looks up the longest suffix of the text that occurs in the
datastore. It reads the matches that come first in the suffix array, and counts the continuations of
these matches. The page docs/methods/rest.md lists the differences between the paper, the authors'
code and this implementation.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from paceline import datastore
from paceline.core.drafter import Drafter
from paceline.core.origin import Origin
from paceline.core.request import Request
from paceline.core.tree import EMPTY_TREE, DraftTree
from paceline.datastore.store import Snapshot
from paceline.drafters.rest.counting import Queries, SuffixSearch, Trees, draft
from paceline.drafters.rest.options import RestOptions


class Rest(Drafter):
    """Drafts the most frequent continuations of the newest tokens in a datastore."""

    name = "rest"
    keeps_tokens = True
    needs_store = True
    Options = RestOptions

    def __init__(self, options: RestOptions, store: datastore.Datastore) -> None:
        self._options, self._store = options, store
        self.ids_below = store.vocab_size
        self._limit = 0  # the target's vocabulary size if smaller than the datastore's, else 0
        self._limited: Snapshot | None = None

    @classmethod
    def build(cls, options: RestOptions) -> Rest:
        """Build the drafter from its options.

        Raises:
            DatastoreError: The datastore does not exist or is damaged.
        """
        assert options.datastore
        return cls(options, datastore.open(options.datastore))

    def check_vocab_size(self, vocab_size: int, tokenizer: Any = None) -> None:
        """Limit drafts to token ids below the size of the target's vocabulary."""
        if vocab_size < self.ids_below:
            self._limit = min(vocab_size, self._limit or vocab_size)
            self._limited = None

    def check_tokenizer(self, tokenizer: Any) -> None:
        """Reject a datastore that was made with a different tokenizer."""
        self._store.check_tokenizer(tokenizer)

    def _searchable(self) -> Snapshot:
        """Return the current datastore, restricted to the target's token ids."""
        snapshot = self._store.snapshot
        if not self._limit:
            return snapshot
        if self._limited is None or self._limited.shards != snapshot.shards:
            self._limited = Snapshot(snapshot.path, snapshot.shards, self._limit)
        return self._limited

    def propose(self, requests: Sequence[Request], max_nodes: list[int]) -> list[DraftTree]:
        """Draft the most frequent continuations for the whole batch.

        Raises:
            DatastoreError: A page of the datastore is damaged; the message names the shard.
        """
        options, snapshot = self._options, self._searchable()
        queries = [request.token_ids[-options.max_ngram :] for request in requests]
        ids = np.array([token for query in queries for token in query], dtype=np.int64)
        offsets = np.array([0, *accumulate(map(len, queries))], dtype=np.int64)
        depths = np.array(
            [min(options.max_draft_tokens, request.remaining - 1) for request in requests],
            dtype=np.int64,
        )
        limits = np.array([min(options.max_nodes, limit) for limit in max_nodes], dtype=np.int64)
        tokens = np.empty((len(requests), max(limits, default=0)), dtype=np.int64)
        parents, shares, sizes = (
            np.empty_like(tokens),
            np.empty(tokens.shape),
            np.empty(len(requests), dtype=np.int64),
        )
        search = SuffixSearch(options.min_ngram, options.max_ngram, options.max_matches)
        snapshot.check(
            draft(
                snapshot.table,
                Queries(ids, offsets, depths, limits),
                search,
                Trees(tokens, parents, shares, sizes),
            )
        )
        return [
            DraftTree(
                tokens[i, :size].tolist(),
                parents[i, :size].tolist(),
                confidence=shares[i, :size].tolist(),
                origins=[Origin.DATASTORE] * size,
            )
            if size
            else EMPTY_TREE
            for i, size in enumerate(sizes.tolist())
        ]
