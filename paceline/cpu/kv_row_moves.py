"""Positions of a cache that move forward, in all layers by one compiled call: torch takes longer
for its many calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from torch import Tensor

from paceline.core.tree import IntArray
from paceline.cpu import simd_f32x8
from paceline.cpu.plain_tensors import is_plain
from paceline.util.compiled import compiled

_STEP = 32  # bytes that are moved at a time


class Stores(NamedTuple):
    """Tensors [slots, heads, capacity, dim] of a cache, as compiled code sees them. Attributes:

    places: their addresses. heads: of each. sizes: of each, bytes of a position of one head.
    capacity: of all.
    """

    places: IntArray
    heads: IntArray
    sizes: IntArray
    capacity: int

    @staticmethod
    def of(tensors: Sequence[Tensor]) -> Stores | None:
        """Describe tensors while they live; None where compiled code cannot read them, or rows
        are no whole steps long.
        """
        sizes = [one.shape[3] * one.element_size() for one in tensors]
        readable = all(
            is_plain(one) and one.device.type == "cpu" and one.is_contiguous() for one in tensors
        )
        if not readable or any(size % _STEP for size in sizes):
            return None
        columns = [one.data_ptr() for one in tensors], [one.shape[1] for one in tensors], sizes
        places, heads, bytes_each = (np.array(column, dtype=np.int64) for column in columns)
        return Stores(places, heads, bytes_each, tensors[0].shape[2] if tensors else 0)


@compiled
def move_forward(stores: Stores, slots: IntArray, source: IntArray, target: IntArray) -> None:
    """Copy positions within slots.

    Args:
        slots: [rows]. source, target: [rows, m], ascending, no target behind its source.
    """
    places, heads, sizes, capacity = stores
    for store in range(len(places)):
        size = sizes[store]
        for row in range(len(slots)):
            for head in range(heads[store]):
                first = places[store] + (slots[row] * heads[store] + head) * capacity * size
                for place in range(source.shape[1]):
                    there, here = (
                        first + source[row, place] * size,
                        first + target[row, place] * size,
                    )
                    for at in range(0, size if here != there else 0, _STEP):
                        simd_f32x8.store(here + at, simd_f32x8.load(there + at))
