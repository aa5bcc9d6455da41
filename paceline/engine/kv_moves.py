"""Positions of a cache that move forward, in all layers by one compiled call: torch takes longer for its many calls."""

from __future__ import annotations

from collections.abc import Sequence as ListLike

import numpy as np
from torch import Tensor

from paceline.common import lanes
from paceline.common.compiled import compiled
from paceline.engine.tree import IntArray

_STEP = 32  # bytes that are moved at a time


def can_move(stores: ListLike[Tensor]) -> bool:
    """Whether `move_forward` takes them: on a CPU, of rows that are whole steps long."""
    return all(store.device.type == "cpu" and store.is_contiguous() and not _size(store) % _STEP for store in stores)


def move_forward(stores: ListLike[Tensor], slots: IntArray, source: IntArray, target: IntArray) -> None:
    """Copy positions within slots.

    Args:
        stores: [slots, heads, capacity, dim] each, `can_move`.
        slots: [rows, 1]. source, target: [rows, m], ascending, no target behind its source.
    """
    places = np.array([store.data_ptr() for store in stores], dtype=np.int64)
    heads, sizes = (np.array([what(store) for store in stores], dtype=np.int64) for what in (_heads, _size))
    _move(places, heads, sizes, stores[0].shape[2], slots[:, 0], source, target)


def _heads(store: Tensor) -> int:
    return store.shape[1]


def _size(store: Tensor) -> int:
    """Bytes of a position of one head."""
    return store.shape[3] * store.element_size()


@compiled
def _move(
    places: IntArray, heads: IntArray, sizes: IntArray, capacity: int, slots: IntArray, source: IntArray, target: IntArray
) -> None:
    for store in range(len(places)):
        size = sizes[store]
        for row in range(len(slots)):
            for head in range(heads[store]):
                first = places[store] + (slots[row] * heads[store] + head) * capacity * size
                for place in range(source.shape[1]):
                    there, here = first + source[row, place] * size, first + target[row, place] * size
                    for at in range(0, size if here != there else 0, _STEP):
                        lanes.store(here + at, lanes.load(there + at))
