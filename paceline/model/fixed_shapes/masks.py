"""Compute additive attention masks on the device, from lengths and tree ancestors."""

from __future__ import annotations

import torch
from torch import Tensor

from paceline.attention.reach import Reach
from paceline.model.fixed_shapes.inputs import BucketTensors
from paceline.model.fixed_shapes.settings import MASKED_SCORE


class MaskBuilder:
    """Builds the masks for one fixed shape (bucket) without waiting for the device.

    Args:
        shape: Number of rows in the bucket, number of columns per row, and number of cache
            positions that attention reads.
        groups: Number of query heads per key head.
        dtype: Data type of the masks.
        device: Device of the masks.
    """

    def __init__(
        self,
        shape: tuple[int, int, int],
        groups: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self._rows, self._columns, self._num_positions = shape
        self._groups, self._dtype = groups, dtype
        self._low = max(MASKED_SCORE, torch.finfo(dtype).min)
        self._span = torch.arange(self._num_positions, device=device)

    def masks(self, inputs: BucketTensors, reaches: dict[str, Reach]) -> dict[str, Tensor]:
        """Return one mask per kind of layer, [rows, 1, groups * columns, positions].

        The masks contain numbers to be added to the attention scores. The query heads that share a
        key head form a group, and `groups` is the number of heads in a group. Every head of a group
        has the same mask, so the mask of the columns is repeated `groups` times.

        Args:
            inputs: Inputs of the forward pass.
            reaches: How far back each kind of layer attends.
        """
        offsets = self._span - inputs.cached[:, None]  # distance to the first column's position
        columns = offsets.clamp(0, self._columns - 1)
        in_block = (offsets >= 0) & (offsets < self._columns)
        index = columns[:, None].expand(self._rows, self._columns, self._num_positions)
        seen = (offsets < 0)[:, None] | (inputs.block.gather(2, index) & in_block[:, None])
        return {
            kind: self._added(self._near(seen, offsets, inputs, reach))
            for kind, reach in reaches.items()
        }

    def _near(self, seen: Tensor, offsets: Tensor, inputs: BucketTensors, reach: Reach) -> Tensor:
        """Hide the positions that are outside the window or chunk of each query."""
        if not reach.is_limited:
            return seen
        own = key_positions(inputs).gather(1, offsets.clamp(0, self._columns - 1))
        keys = torch.where(offsets < 0, self._span, own)
        queries = inputs.positions[:, :, None]
        near: Tensor
        if reach.window:
            near = keys[:, None] > queries - reach.window
        else:
            assert reach.chunk, "called only for a limited reach"
            near = keys[:, None] // reach.chunk == queries // reach.chunk
        return seen & near

    def _added(self, seen: Tensor) -> Tensor:
        mask = torch.zeros(seen.shape, dtype=self._dtype, device=seen.device)
        mask.masked_fill_(~seen, self._low)
        return mask[:, None].repeat(1, 1, self._groups, 1)


def key_positions(inputs: BucketTensors) -> Tensor:
    """Return the text positions of the keys that a forward pass adds to the cache.

    Args:
        inputs: Inputs of the forward pass.
    Returns:
        Text positions, ordered by cache position, int64 [rows, columns].
    """
    rows, columns = inputs.positions.shape
    # The scatter sends the positions of columns without a token to an extra column, which is then
    # removed.
    stored = inputs.cache_positions >= 0
    order = torch.where(stored, inputs.cache_positions - inputs.cached[:, None], columns)
    positions: Tensor = inputs.positions.new_zeros(rows, columns + 1)
    return positions.scatter(1, order, inputs.positions)[:, :columns].contiguous()
