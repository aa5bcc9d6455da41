"""Arrange the tokens, positions and masks of a batch in padded rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from paceline.attention.reach import UNLIMITED, Reach
from paceline.core.request import Request
from paceline.core.tree import BoolArray, DraftTree, IntArray
from paceline.model.padded_kernel import arrange_rows, fill_visible


class PaddedBatch(NamedTuple):
    """Arrays for one forward pass over a batch, with one row per request.

    Each row consists of padding, pending tokens (the newest last), tree nodes, and more padding, in
    this order.

    Attributes:
        token_ids: Token ids, [rows, columns].
        positions: Position of each token in its text, [rows, columns].
        cache_positions: Position of each token in its KV-cache slot, [rows, columns].
        block: [rows, columns, columns]. Entry [row, i, j] is True if column i sees column j.
            Padding columns see only the root, so that the values of padding columns stay finite.
        padding: True for columns without a token, [rows, columns].
        cached: Number of tokens in the cache before this forward pass, [rows].
        pending: Number of pending tokens processed in this forward pass, [rows].
        nodes: Number of tree nodes processed in this forward pass, [rows].
        width: Number of columns after the pending tokens: the size of the largest tree, or more if
            `lay_out` has padded a small batch.
        num_logit_columns: Number of columns at the end of each row whose logits are computed:
            1 + width, or all columns if a request's prompt is scored.
        first_slot: KV-cache slot of row 0; row i uses slot first_slot + i.
        in_order: Whether no row starts with padding, so that the cache positions of every row are
            consecutive.
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
        """Number of columns that have logits and precede the newest pending token."""
        return self.num_logit_columns - self.width - 1

    @property
    def trivial(self) -> bool:
        """True if no mask is needed: one token per row, after prefixes of equal length."""
        if self.token_ids.shape[1] > 1:
            return False
        return len(set(self.cached.tolist())) == 1

    @property
    def causal(self) -> int:
        """Number of leading columns that see all tokens up to and including their own.

        The number is 0 if a request has cached tokens or a row starts with padding. The caller uses
        the number only if all layers have full attention.
        """
        front = self.token_ids.shape[1] - self.width
        return front if self.in_order and not any(self.cached.tolist()) else 0

    def visible_mask(self, positions_seen: int, reach: Reach = UNLIMITED) -> BoolArray:
        """Return the cache positions that each column sees.

        The result is a mask, [rows, columns, positions_seen].

        Args:
            positions_seen: Number of cache positions in the mask.
            reach: Limit on how far back the layers attend.
        """
        mask = np.zeros((*self.token_ids.shape, positions_seen), dtype=np.bool_)
        columns = self.positions, self.cache_positions, self.padding
        fill_visible(mask, self.cached, columns, self.block, reach.window or 0, reach.chunk or 0)
        return mask


def lay_out(
    requests: Sequence[Request], trees: Sequence[DraftTree], prefill_chunk: int, min_rows: int = 1
) -> PaddedBatch:
    """Arrange the pending tokens and draft trees of a batch in padded rows.

    Args:
        requests: Requests in the batch, in consecutive slots.
        trees: One draft tree per request.
        prefill_chunk: Maximum number of pending tokens per request.
        min_rows: Minimum value of (number of requests) x (1 + width), where width is the number of
            columns for tree nodes. The function adds padding columns to smaller batches.
    """
    rows = len(requests)
    pending = [min(request.pending, prefill_chunk) for request in requests]
    nodes = [len(tree.token_ids) for tree in trees]
    front, width = max(pending), max(max(nodes), -(-min_rows // rows) - 1)
    if front == 1 and width == 0:
        return _single_tokens(requests)
    cached = [request.cached for request in requests]
    # The states of another token, such as 0, may be NaN, which attention cannot mask.
    newest = [request.token_ids[-1] for request in requests]
    numbers: list[int] = []
    for row, (request, tree) in enumerate(zip(requests, trees, strict=True)):
        numbers += request.token_ids[cached[row] : cached[row] + pending[row]]
        numbers += tree.token_ids
        numbers += tree.parents
    counts = np.array([cached, pending, nodes, newest], dtype=np.int64)
    columns = np.empty((3, rows, front + width), dtype=np.int64)
    padding = np.empty((rows, front + width), dtype=np.bool_)
    block = np.zeros((rows, front + width, front + width), dtype=np.bool_)
    arrange_rows(counts, np.array(numbers, dtype=np.int64), front, columns, padding, block)
    is_scoring = any(request.scoring for request in requests)
    return PaddedBatch(
        columns[0],
        columns[1],
        columns[2],
        block,
        padding,
        counts[0],
        counts[1],
        counts[2],
        width,
        front + width if is_scoring else width + 1,
        requests[0].slot,
        in_order=pending.count(front) == rows,
    )


def _single_tokens(requests: Sequence[Request]) -> PaddedBatch:
    """Arrange a batch in which each request has one pending token and no draft tree."""
    cached = [request.cached for request in requests]
    newest = [request.token_ids[length] for request, length in zip(requests, cached, strict=True)]
    ones = [1] * len(cached)
    token_ids, lengths, pending = np.array([newest, cached, ones], dtype=np.int64)
    cache_positions = lengths[:, None]
    padding = pending[:, None] == 0
    return PaddedBatch(
        token_ids[:, None],
        cache_positions,
        cache_positions,
        ~padding[:, None],
        padding,
        lengths,
        pending,
        pending - 1,
        0,
        1,
        requests[0].slot,
        True,
    )
