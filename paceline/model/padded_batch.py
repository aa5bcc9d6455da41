"""Arrange a batch in padded rows: tokens, positions and visibility."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from paceline.attention.reach import UNLIMITED, Reach
from paceline.core.request import Request
from paceline.core.tree import BoolArray, DraftTree, IntArray, tree_shape


@dataclass(frozen=True, slots=True)
class PaddedBatch:
    """Arrays for one forward pass over a batch, with one row per request.

    The columns of each row are padding, pending tokens (the newest last), tree nodes and padding.

    Attributes:
        token_ids: Token ids, [rows, columns].
        positions: Position of each token in its text, [rows, columns].
        cache_positions: Position of each token in its KV-cache slot, [rows, columns].
        block: Whether one column sees another, [rows, columns, columns]. Padding sees only the
            root, so that its values stay finite.
        padding: True for columns without a token, [rows, columns].
        cached: Number of tokens in the cache before this forward pass, [rows].
        pending: Number of pending tokens processed in this forward pass, [rows].
        nodes: Number of tree nodes processed in this forward pass, [rows].
        width: Number of columns after the pending tokens: the size of the largest tree, or more if
            rows are padded.
        num_logit_columns: Number of columns, from the end, whose logits are computed: 1 + width,
            or all columns if a request's prompt is scored.
        first_slot: KV-cache slot of row 0; row i uses slot first_slot + i.
        in_order: Whether the cache positions of every row are consecutive, with no padding in
            front.
    """

    token_ids: IntArray
    positions: IntArray
    cache_positions: IntArray
    block: BoolArray
    padding: BoolArray
    cached: IntArray
    pending: IntArray
    nodes: IntArray
    width: int
    num_logit_columns: int
    first_slot: int
    in_order: bool

    @property
    def scored(self) -> int:
        """Number of columns before the newest tokens for which logits are computed."""
        return self.num_logit_columns - self.width - 1

    @property
    def trivial(self) -> bool:
        """True if no mask is needed: one token per row, after prefixes of equal length."""
        return self.token_ids.shape[1] == 1 and bool((self.cached == self.cached[0]).all())

    @property
    def causal(self) -> int:
        """Number of leading columns with plain causal attention: prompts without a cache.

        It is used only if all layers have full attention.
        """
        front = self.token_ids.shape[1] - self.width
        return front if self.in_order and not self.cached.any() else 0

    def visible_mask(self, positions_seen: int, reach: Reach = UNLIMITED) -> BoolArray:
        """Return which cache positions each column sees, [rows, columns, positions_seen].

        Args:
            positions_seen: Number of cache positions in the mask.
            reach: Limit on how far back the layers attend.
        """
        rows, columns = self.token_ids.shape
        mask = np.zeros((rows, columns, positions_seen), dtype=np.bool_)
        seen_at = np.tile(np.arange(positions_seen), (rows, 1)) if reach.is_limited else None
        for row, num_cached in enumerate(self.cached.tolist()):
            mask[row, :, :num_cached] = True
            order = slice(None) if self.in_order else np.argsort(self.cache_positions[row])
            mask[row, :, num_cached : num_cached + columns] = self.block[row][:, order]
            if seen_at is not None:
                seen_at[row, num_cached : num_cached + columns] = self.positions[row][order]
        if seen_at is not None:
            near = _is_near(self.positions[:, :, None], seen_at[:, None, :], reach)
            mask &= near | self.padding[:, :, None]
        return mask


def _is_near(query: IntArray, key: IntArray, reach: Reach) -> BoolArray:
    """Return whether a key is within the reach of a query.

    Args:
        query: Text positions of the queries.
        key: Text positions of the keys, broadcast against `query`.
        reach: Window or chunk of the layers.
    """
    near: BoolArray
    if reach.window:
        near = key > query - reach.window
    else:
        assert reach.chunk, "called only for a limited reach"
        near = key // reach.chunk == query // reach.chunk
    return near


def lay_out(
    requests: Sequence[Request], trees: Sequence[DraftTree], prefill_chunk: int, min_rows: int = 1
) -> PaddedBatch:
    """Arrange the pending tokens and draft trees of a batch in padded rows.

    Args:
        requests: Requests in the batch, in consecutive slots.
        trees: One draft tree per request.
        prefill_chunk: Maximum number of pending tokens per request.
        min_rows: Minimum value of requests x (1 + width). Smaller batches get padding columns.
    """
    rows = len(requests)
    cached = np.array([request.cached for request in requests], dtype=np.int64)
    pending = np.array(
        [min(request.pending, prefill_chunk) for request in requests], dtype=np.int64
    )
    nodes = np.array([len(tree) for tree in trees], dtype=np.int64)
    front, width = int(pending.max()), max(int(nodes.max()), -(-min_rows // rows) - 1)
    if front == 1 and width == 0:
        return _single_tokens(requests, cached, pending, nodes)
    columns = front + width
    token_ids = _newest_tokens(requests, columns)
    # Cache position of each column, relative to `cached`.
    offsets = np.arange(columns) - (front - pending)[:, None]
    depths = np.minimum(offsets, front)  # text position, relative to `cached`
    block = np.zeros((rows, columns, columns), dtype=np.bool_)
    block[:, :front, :front] = np.tri(front, dtype=np.bool_)
    for row, (request, tree) in enumerate(zip(requests, trees, strict=True)):
        arrays = token_ids[row], depths[row], block[row]
        _fill_row(arrays, request, tree, int(pending[row]), front)
    padding = (offsets < 0) | (offsets >= (pending + nodes)[:, None])
    positions = np.where(padding, 0, cached[:, None] + depths)
    cache_positions = cached[:, None] + offsets % columns
    num_logit_columns = columns if any(request.scoring for request in requests) else width + 1
    return PaddedBatch(
        token_ids,
        positions,
        cache_positions,
        block,
        padding,
        cached,
        pending,
        nodes,
        width,
        num_logit_columns,
        requests[0].slot,
        in_order=bool((pending == front).all()),
    )


def _newest_tokens(requests: Sequence[Request], columns: int) -> IntArray:
    """Return each row's newest token, repeated in all columns as padding.

    The states of another token, such as 0, may be NaN, which attention cannot mask.
    """
    token_ids = np.empty((len(requests), columns), dtype=np.int64)
    token_ids[:] = [[request.token_ids[-1]] for request in requests]
    return token_ids


def _fill_row(
    arrays: tuple[IntArray, IntArray, BoolArray],
    request: Request,
    tree: DraftTree,
    num_pending: int,
    front: int,
) -> None:
    """Write one request's pending tokens and tree into its row of a batch.

    Args:
        arrays: Token ids [columns], positions relative to the cache [columns], and `block`.
        request: Request of the row.
        tree: Draft tree of the request.
        num_pending: Number of pending tokens to write; they end before column `front`.
        front: First column of the tree.
    """
    token_ids, depths, block = arrays
    num_nodes = len(tree)
    first, stop = front - num_pending, front + num_nodes
    token_ids[first:front] = request.token_ids[request.cached : request.cached + num_pending]
    if num_nodes:
        depth, ancestors = tree_shape(tuple(tree.parents))
        token_ids[front:stop] = tree.token_ids
        depths[front:stop] = num_pending - 1 + depth
        block[front:stop, first:front] = True
        block[front:stop, front:stop] = ancestors
    if first:
        block[:, :first] = False
        block[:first, front - 1] = True
    if stop < len(token_ids):
        block[stop:, front - 1] = True


def _single_tokens(
    requests: Sequence[Request], cached: IntArray, pending: IntArray, nodes: IntArray
) -> PaddedBatch:
    """Arrange one pending token per row, without trees, for decoding and drafting."""
    token_ids = np.array(
        [[request.token_ids[request.cached]] for request in requests], dtype=np.int64
    )
    cache_positions = cached[:, None]
    block = np.ones((len(requests), 1, 1), dtype=np.bool_)
    padding = np.zeros((len(requests), 1), dtype=np.bool_)
    return PaddedBatch(
        token_ids,
        cache_positions,
        cache_positions,
        block,
        padding,
        cached,
        pending,
        nodes,
        0,
        1,
        requests[0].slot,
        True,
    )
