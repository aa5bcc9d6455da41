"""Move accepted rows of the KV cache in all layers with one compiled call.

torch would need a call per layer and tensor. The calls would take longer than the copies.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from torch import Tensor

from paceline.backend.plain_tensors import is_plain
from paceline.core.tree import IntArray
from paceline.cpu.memory import VECTOR_BYTES, copy
from paceline.util.compiled import compiled


class CacheTensors(NamedTuple):
    """Describes KV-cache tensors, [slots, heads, capacity, dim], to compiled code.

    Attributes:
        addresses: Address of each tensor.
        heads: Number of heads in each tensor.
        sizes: Size of one head at one cache position in each tensor, in bytes.
        capacity: Number of cache positions per slot, which is the same in all tensors.
    """

    addresses: IntArray
    heads: IntArray
    sizes: IntArray
    capacity: int

    @staticmethod
    def of(tensors: Sequence[Tensor]) -> CacheTensors | None:
        """Describe cache tensors, or return None if compiled code cannot read them.

        The tensors must be contiguous and on a CPU, and the size of one head at one cache position
        must be a multiple of 32 bytes. The result is valid only while the tensors exist.
        """
        sizes = [tensor.shape[3] * tensor.element_size() for tensor in tensors]
        readable = all(
            is_plain(tensor) and tensor.device.type == "cpu" and tensor.is_contiguous()
            for tensor in tensors
        )
        if not readable or any(size % VECTOR_BYTES for size in sizes):
            return None
        columns = [tensor.data_ptr() for tensor in tensors], [t.shape[1] for t in tensors], sizes
        addresses, heads, bytes_per_row = (np.array(column, dtype=np.int64) for column in columns)
        return CacheTensors(addresses, heads, bytes_per_row, tensors[0].shape[2] if tensors else 0)


@compiled
def move_rows(stores: CacheTensors, slots: IntArray, source: IntArray, target: IntArray) -> None:
    """Copy KV-cache rows to lower cache positions in the same slots.

    Args:
        stores: Cache tensors.
        slots: Slot of each request, [requests].
        source: Cache positions to copy from, in ascending order, [requests, moves].
        target: Cache positions to copy to, in ascending order and in the shape of `source`. Each
            is less than or equal to the source position of the same move.
    """
    addresses, heads, sizes, capacity = stores
    for store in range(len(addresses)):
        size = sizes[store]
        for row in range(len(slots)):
            for head in range(heads[store]):
                index = (slots[row] * heads[store] + head) * capacity
                first = addresses[store] + index * size
                for move in range(source.shape[1]):
                    if source[row, move] != target[row, move]:
                        copy(
                            first + source[row, move] * size, first + target[row, move] * size, size
                        )
