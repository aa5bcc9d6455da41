"""Keep all inputs of a forward pass with a fixed shape in one buffer.

All inputs are then sent to the device in a single copy.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from paceline.core.tree import IntArray
from paceline.model.fixed_shapes.upload import UploadBuffer
from paceline.model.padded_batch import PaddedBatch

SCRATCH = -1  # cache position of a column without a token
_INT_BYTES = 8
_TABLES = 4  # number of integers per column


class BucketTensors(NamedTuple):
    """The inputs of a forward pass with a fixed shape (bucket), as views of a buffer.

    Attributes:
        token_ids: Token ids, int64 [rows, columns].
        positions: Text position of each token, int64 [rows, columns].
        cache_positions: Cache position of each token, int64 [rows, columns]; -1 (`SCRATCH`) for
            columns without a token.
        store_rows: For each column, the row of a layer's key and value tensors at which the
            request's slot begins, int64 [rows, columns].
        cached: Number of cached tokens before the forward pass, int64 [rows].
        block: bool [rows, columns, columns]. Entry [row, c, j] is True if column c sees cache
            position cached[row] + j.
    """

    token_ids: Any
    positions: Any
    cache_positions: Any
    store_rows: Any
    cached: Any
    block: Any


class BucketInputs:
    """Input buffers of one fixed shape (bucket), on the host and on the device.

    Args:
        rows: Number of rows in the bucket.
        columns: Number of columns per row.
        device: Device of the forward pass.
    Attributes:
        tensors: Views of the buffer on the device.
    """

    def __init__(self, rows: int, columns: int, device: torch.device) -> None:
        shape = rows, columns
        size = _INT_BYTES * (_TABLES * rows * columns + rows) + rows * columns * columns
        self._buffer = UploadBuffer(size, device)
        self.tensors = _views(self._buffer.device, *shape)
        self._arrays = BucketTensors(*(view.numpy() for view in _views(self._buffer.host, *shape)))

    def fill(
        self, layout: PaddedBatch, token_ids: IntArray, positions: IntArray, store_rows: IntArray
    ) -> None:
        """Write the inputs of a batch, and send them to the device.

        Args:
            layout: Padded batch.
            token_ids: Token ids for the model, [requests, columns of the batch].
            positions: Text positions within the model's context, in the same shape as `token_ids`.
            store_rows: For each request, the row of a layer's key and value tensors at which the
                request's slot begins, [requests].
        """
        self._buffer.wait()
        arrays = self._arrays
        num_rows, num_columns = token_ids.shape
        root = num_columns - layout.width - 1
        # Empty rows and columns repeat a token of the batch, because the hidden states of an
        # arbitrary token may be NaN.
        arrays.token_ids[:num_rows, num_columns:] = token_ids[:, root, None]
        arrays.token_ids[num_rows:] = token_ids[0, root]
        arrays.token_ids[:num_rows, :num_columns] = token_ids
        arrays.positions.fill(0)
        arrays.positions[:num_rows, :num_columns] = positions
        arrays.cache_positions.fill(SCRATCH)
        arrays.cache_positions[:num_rows, :num_columns] = layout.cache_positions
        arrays.store_rows.fill(0)
        arrays.store_rows[:num_rows] = store_rows[:, None]
        arrays.cached.fill(0)
        arrays.cached[:num_rows] = layout.cached
        self._fill_block(layout, root)
        self._buffer.send()

    def _fill_block(self, layout: PaddedBatch, root: int) -> None:
        num_rows, num_columns = layout.token_ids.shape
        block = self._arrays.block
        block.fill(False)
        block[num_rows:, :, 0] = True  # an empty row sees a key, so that its states are finite
        if layout.in_order:
            block[:num_rows, :num_columns, :num_columns] = layout.block
            block[:num_rows, num_columns:, root] = True
            return
        offsets = layout.cache_positions - layout.cached[:, None]
        for row in range(num_rows):
            block[row, :num_columns, offsets[row]] = layout.block[row].T
            block[row, num_columns:, offsets[row, root]] = True


def _views(buffer: Tensor, rows: int, columns: int) -> BucketTensors:
    count = rows * columns
    ints = _INT_BYTES * (_TABLES * count + rows)
    header = buffer[:ints].view(torch.int64)
    tables = header[: _TABLES * count].view(_TABLES, rows, columns)
    block = buffer[ints:].view(rows, columns, columns).view(torch.bool)
    token_ids, positions, cache_positions, store_rows = tables
    cached = header[_TABLES * count :]
    return BucketTensors(token_ids, positions, cache_positions, store_rows, cached, block)
