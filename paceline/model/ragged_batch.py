"""Pack requests with different numbers of tokens into one row of a forward pass.

The row has no padding between requests, so the cost of a request depends only on the request's own
tokens. To the model, the row looks like a single text. `AttentionMetadata` tells batch-invariant
attention which keys each query sees.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from paceline.attention.reach import UNLIMITED, PackedRows, Reach, visible_in_trees
from paceline.backend.attention_metadata import AttentionMetadata, VisibleRanges
from paceline.core.request import Request
from paceline.core.tree import DraftTree, IntArray
from paceline.util.compiled import compiled, kernel


@dataclass(frozen=True, slots=True)
class RaggedBatch:
    """Arrays for one forward pass over a batch, packed into one row.

    Each request contributes its pending tokens (the newest last) and its tree nodes. Padding comes
    at the end. Every token of the row is a query: a pending token, a node or padding.

    Attributes:
        token_ids: Token ids, [queries].
        positions: Position of each token in its text, [queries].
        cache_positions: Position of each token in its KV-cache slot, [queries].
        slots: KV-cache slot of each token, [queries].
        starts: Index of each request's first query, followed by the number of queries,
            [requests + 1]. The padding counts as part of the last request.
        cached: Number of each request's tokens in the cache before this forward pass, [requests].
        pending: Number of each request's pending tokens in this forward pass, [requests].
        nodes: Number of each request's tree nodes, [requests].
        scored: Number of pending tokens, without the newest one, whose logits are computed,
            [requests].
        logit_queries: Queries whose logits are computed, [n]. For every request, these are the
            `scored` tokens, the newest token and the nodes; the padding follows.
        parents: Parent of every node; see `PackedRows`.
        depths: Depth of every node; see `PackedRows`.
        ranks: Breadth-first rank of every node; see `PackedRows`.
        tail: Cache positions in text order; see `AttentionMetadata`.
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

    def visible(self, reach: Reach = UNLIMITED) -> VisibleRanges:
        """Return the ranges of keys that each query sees in one kind of layer.

        Args:
            reach: Limit on how far back these layers attend.
        """
        first_nodes = np.concatenate([[0], np.cumsum(self.nodes)])
        rows = PackedRows(
            self.starts,
            self.cached,
            self.pending,
            self.parents,
            self.depths,
            self.ranks,
            first_nodes,
        )
        return visible_in_trees(rows, reach)

    def attention_metadata(
        self, visible_ranges: dict[int, VisibleRanges], key_rows: IntArray | None = None
    ) -> AttentionMetadata:
        """Build the metadata that batch-invariant attention reads in this forward pass.

        Args:
            visible_ranges: Ranges of keys that each query sees, by the memory address of a
                placeholder mask; see `AttentionMetadata`.
            key_rows: Row of the key tensor at which each request's keys begin, [requests].
                Default: 0, 1, 2, ...
        """
        return AttentionMetadata(
            self.cached,
            self.tail,
            int((self.cached + self.pending + self.nodes).max()),
            visible_ranges,
            key_rows=np.arange(len(self.cached)) if key_rows is None else key_rows,
        )


def pack(
    requests: Sequence[Request], trees: Sequence[DraftTree], prefill_chunk: int, min_rows: int = 1
) -> RaggedBatch:
    """Pack the pending tokens and the draft trees of a batch into one row.

    Args:
        requests: Requests in the batch, in consecutive slots.
        trees: One draft tree per request.
        prefill_chunk: Maximum number of pending tokens per request.
        min_rows: Minimum number of queries, and minimum number of queries with logits. Smaller
            batches are padded.
    """
    cached = np.array([request.cached for request in requests], dtype=np.int64)
    pending = np.array(
        [min(request.pending, prefill_chunk) for request in requests], dtype=np.int64
    )
    nodes = np.array([len(tree) for tree in trees], dtype=np.int64)
    scoring = np.array([request.scoring for request in requests], dtype=np.bool_)
    scored = np.where(scoring, pending - 1, 0)
    padding = max(0, min_rows - len(requests) - int(nodes.sum() + scored.sum()))
    token_ids: list[int] = []
    parents: list[int] = []
    for request, tree, num_cached, num_pending in zip(
        requests, trees, cached.tolist(), pending.tolist(), strict=True
    ):
        token_ids += request.token_ids[num_cached : num_cached + num_pending]
        token_ids += tree.token_ids
        parents += tree.parents
    parent_ids = np.array(parents, dtype=np.int64)
    positions, cache_positions, rows, starts, logit_queries, depths, ranks, tail = _lay_out(
        cached, pending, nodes, scored, parent_ids, padding
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
        parent_ids,
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
    """Return the arrays of a `RaggedBatch` that do not depend on token ids and slots.

    The arrays are, in this order, `positions`, `cache_positions`, the row of each query, `starts`,
    `logit_queries`, `depths`, `ranks` and `tail`.
    """
    # Loops over numbers compile in a fraction of the time of operations on arrays.
    count, widest = len(cached), 0
    max_logits = count + len(parents) + padding
    starts = np.empty(count + 1, dtype=np.int64)
    starts[0] = 0
    for row in range(count):
        num_queries = pending[row] + nodes[row]
        starts[row + 1] = starts[row] + num_queries
        widest = max(widest, num_queries)
        max_logits += scored[row]
    starts[count] += padding
    total = starts[count]
    positions, cache_positions, rows = (
        np.empty(total, np.int64),
        np.empty(total, np.int64),
        np.empty(total, np.int64),
    )
    logit_queries = np.empty(max_logits, dtype=np.int64)
    depths, ranks = np.empty(len(parents), dtype=np.int64), np.empty(len(parents), dtype=np.int64)
    bfs_counts = np.empty(len(parents) + 2, dtype=np.int64)
    tail = np.empty((count, widest), dtype=np.int64)
    first_node, num_logits = 0, 0
    for row in range(count):
        _rank(
            parents[first_node : first_node + nodes[row]],
            depths[first_node:],
            ranks[first_node:],
            bfs_counts,
        )
        root = cached[row] + pending[row] - 1
        for column in range(starts[row + 1] - starts[row]):
            query, node = starts[row] + column, column - pending[row]
            cache_positions[query], rows[query] = cached[row] + column, row
            if node < 0:
                positions[query] = cached[row] + column
            elif node < nodes[row]:
                positions[query] = root + depths[first_node + node]
            else:  # padding
                positions[query] = 0
            if node >= -1 - scored[row]:
                logit_queries[num_logits] = query
                num_logits += 1
        for column in range(widest):
            tail[row, column] = cached[row] + column
        for node in range(nodes[row]):
            tail[row, pending[row] + ranks[first_node + node]] = root + 1 + node
        first_node += nodes[row]
    return positions, cache_positions, rows, starts, logit_queries, depths, ranks, tail


@kernel
def _rank(parents: IntArray, depths: IntArray, ranks: IntArray, bfs_counts: IntArray) -> None:
    """Fill in the depth and the breadth-first rank of every node in a tree.

    Args:
        parents: Parent of each node; -1 means the root.
        depths: Output: depth of each node.
        ranks: Output: breadth-first rank of each node, from 0. Nodes are ranked by depth, and
            nodes at the same depth by index.
        bfs_counts: Scratch space of at least nodes + 2 entries, for the number of nodes at each
            depth and the prefix sums of these numbers.
    """
    count = len(parents)
    bfs_counts[: count + 2] = 0
    for node in range(count):
        depths[node] = 1 if parents[node] < 0 else depths[parents[node]] + 1
        bfs_counts[depths[node] + 1] += 1
    for depth in range(1, count + 2):
        bfs_counts[depth] += bfs_counts[depth - 1]
    for node in range(count):
        ranks[node] = bfs_counts[depths[node]]
        bfs_counts[depths[node]] += 1
