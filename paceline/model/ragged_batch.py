"""One forward of several sequences without padding: their pending tokens and tree nodes behind one
another, in a single row.

To the model this is one text; what each token sees is up to attention by position, which is told
for every query (`AttentionMetadata`). So a sequence costs the tokens it feeds, whatever the others
feed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from paceline.attention.reach import visible_in_trees
from paceline.core.attention_metadata import AttentionMetadata, VisibleRanges
from paceline.core.request import Request
from paceline.core.tree import DraftTree, IntArray
from paceline.util.compiled import compiled, kernel


@dataclass(frozen=True, slots=True)
class RaggedBatch:
    """Arrays of one forward pass over a batch, packed into a single row.

    Each request contributes its pending tokens, the newest last, then its tree nodes. Padding comes
    at the end.

    Attributes:
        token_ids: Token ids, [queries].
        positions: Position of each token in its text, [queries].
        cache_positions: Position of each token in its KV cache slot, [queries].
        slots: KV cache slot of each token, [queries].
        starts: First query of each request, [rows + 1]. Padding belongs to the last request.
        cached: Tokens in the cache before this forward pass, [rows].
        pending: Pending tokens processed in this forward pass, [rows].
        nodes: Tree nodes processed in this forward pass, [rows].
        scored: Pending tokens before the newest whose logits are also computed, [rows].
        logit_queries: Queries whose logits are computed, [n]: of every request the `scored` tokens,
            the newest token and the nodes; then padding.
        parents: Parent of every node, see `visible_in_trees`.
        depths: Depth of every node, see `visible_in_trees`.
        ranks: Breadth-first rank of every node, see `visible_in_trees`.
        tail: Cache positions in text order, see `AttentionMetadata`.
    """

    token_ids: IntArray
    positions: IntArray
    cache_positions: IntArray
    slots: IntArray
    starts: IntArray
    cached: IntArray
    pending: IntArray
    nodes: IntArray
    scored: IntArray
    logit_queries: IntArray
    parents: IntArray
    depths: IntArray
    ranks: IntArray
    tail: IntArray

    def visible(self, window: int | None = None, chunk: int | None = None) -> VisibleRanges:
        """What every query sees, in layers with a sliding window, with chunks, or with neither."""
        begins = np.concatenate([[0], np.cumsum(self.nodes)])
        shape = self.parents, self.depths, self.ranks, begins
        return visible_in_trees(self.starts, self.cached, self.pending, *shape, window, chunk)

    def attention_metadata(self, marks: dict[int, VisibleRanges]) -> AttentionMetadata:
        """The keys of every sequence by position.

        Args:
            marks: see `AttentionMetadata`.
        """
        return AttentionMetadata(
            self.cached, self.tail, int((self.cached + self.pending + self.nodes).max()), marks
        )


def pack(
    requests: Sequence[Request], trees: Sequence[DraftTree], chunk: int, min_rows: int = 1
) -> RaggedBatch:
    """Pack up to `chunk` pending tokens and the tree of every sequence.

    Args:
        min_rows: so many queries, and logits, there are at least; padding makes up for the rest.
    """
    cached = np.array([request.cached for request in requests], dtype=np.int64)
    pending = np.array([min(request.pending, chunk) for request in requests], dtype=np.int64)
    nodes = np.array([len(tree) for tree in trees], dtype=np.int64)
    scored = np.array(
        [
            fed - 1 if request.scoring else 0
            for request, fed in zip(requests, pending.tolist(), strict=True)
        ],
        dtype=np.int64,
    )
    padding = max(0, min_rows - len(requests) - int(nodes.sum() + scored.sum()))
    token_ids: list[int] = []
    parents: list[int] = []
    for request, tree, past, fed in zip(
        requests, trees, cached.tolist(), pending.tolist(), strict=True
    ):
        token_ids += request.token_ids[past : past + fed]
        token_ids += tree.token_ids
        parents += tree.parents
    above = np.array(parents, dtype=np.int64)
    positions, cache_positions, rows, starts, logit_queries, depths, ranks, tail = _lay_out(
        cached, pending, nodes, scored, above, padding
    )
    ids = np.array(token_ids + [0] * padding, dtype=np.int64)
    slots = requests[0].slot + rows
    return RaggedBatch(
        ids,
        positions,
        cache_positions,
        slots,
        starts,
        cached,
        pending,
        nodes,
        scored,
        logit_queries,
        above,
        depths,
        ranks,
        tail,
    )


@compiled
def _lay_out(
    cached: IntArray,
    pending: IntArray,
    nodes: IntArray,
    scored: IntArray,
    parents: IntArray,
    padding: int,
) -> tuple[IntArray, IntArray, IntArray, IntArray, IntArray, IntArray, IntArray, IntArray]:
    """Return the eight arrays of `RaggedBatch` that depend on cache and tree shapes.

    They are positions, cache_positions, rows, starts, logit_queries, depths, ranks and tail. Rows
    count from 0.
    """
    count = len(cached)
    fed = pending + nodes
    starts = np.zeros(count + 1, dtype=np.int64)
    starts[1:] = np.cumsum(fed)
    starts[count] += padding
    total = starts[count]
    positions, cache_positions, rows = (
        np.zeros(total, np.int64),
        np.empty(total, np.int64),
        np.empty(total, np.int64),
    )
    logit_queries = np.empty(count + scored.sum() + len(parents) + padding, dtype=np.int64)
    depths, ranks = np.empty(len(parents), dtype=np.int64), np.empty(len(parents), dtype=np.int64)
    above = np.empty(len(parents) + 2, dtype=np.int64)
    tail = np.empty((count, fed.max()), dtype=np.int64)
    first, wanted = 0, 0
    for row in range(count):
        _rank(parents[first : first + nodes[row]], depths[first:], ranks[first:], above)
        root = cached[row] + pending[row] - 1
        for place in range(starts[row + 1] - starts[row]):
            query, node = starts[row] + place, place - pending[row]
            cache_positions[query], rows[query] = cached[row] + place, row
            if node < 0:
                positions[query] = cached[row] + place
            elif node < nodes[row]:
                positions[query] = root + depths[first + node]
            if node >= -1 - scored[row]:
                logit_queries[wanted] = query
                wanted += 1
        tail[row] = cached[row] + np.arange(tail.shape[1])
        for node in range(nodes[row]):
            tail[row, pending[row] + ranks[first + node]] = root + 1 + node
        first += nodes[row]
    return positions, cache_positions, rows, starts, logit_queries, depths, ranks, tail


@kernel
def _rank(parents: IntArray, depths: IntArray, ranks: IntArray, above: IntArray) -> None:
    """Fill in the depth of every node of a tree, and how many come before it, by depth and then by
    number.

    Args:
        above: [at least nodes + 2], to work in: the nodes of every depth, then of all smaller ones.
    """
    count = len(parents)
    above[: count + 2] = 0
    for node in range(count):
        depths[node] = 1 if parents[node] < 0 else depths[parents[node]] + 1
        above[depths[node] + 1] += 1
    for depth in range(1, count + 2):
        above[depth] += above[depth - 1]
    for node in range(count):
        ranks[node] = above[depths[node]]
        above[depths[node]] += 1
