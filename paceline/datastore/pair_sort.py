"""Sort 64-bit keys with three-way quicksort, together with their positions."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from paceline.datastore.store_settings import SHORT_RUN
from paceline.util.compiled import compiled

MAX_PENDING = 256  # two numbers per part to be sorted later; enough for 2^128 keys


@compiled
def _insertion_sort_keys(
    keys: NDArray[np.uint64], run: NDArray[np.int32], low: int, high: int
) -> None:
    for index in range(low + 1, high):
        key, moving, hole = keys[index], run[index], index
        while hole > low and keys[hole - 1] > key:
            keys[hole], run[hole] = keys[hole - 1], run[hole - 1]
            hole -= 1
        keys[hole], run[hole] = key, moving


@compiled
def sort_pairs(
    keys: NDArray[np.uint64], run: NDArray[np.int32], pending: NDArray[np.int64]
) -> None:
    """Sort the keys with three-way quicksort, and reorder `run` in the same way.

    The pivot is the median of three keys. One of them is at a random index, so that no input takes
    quadratic time.

    Args:
        keys: Keys to sort, [n].
        run: Position for each key, [n].
        pending: Scratch space for the bounds of unsorted parts. The smaller part is sorted first,
            so 2 log2(n) entries are enough.
    """
    low, high, depth = 0, keys.size, 0
    noise = np.uint64(0x9E3779B97F4A7C15)  # state of a xorshift generator
    while True:
        if high - low <= SHORT_RUN:
            _insertion_sort_keys(keys, run, low, high)
            if depth == 0:
                return
            depth -= 2
            low, high = pending[depth], pending[depth + 1]
            continue
        noise ^= noise << np.uint64(13)
        noise ^= noise >> np.uint64(7)
        noise ^= noise << np.uint64(17)
        first = keys[low + np.int64(noise % np.uint64(high - low))]
        second, third = keys[low + (high - low) // 2], keys[high - 1]
        pivot = max(min(first, second), min(max(first, second), third))
        less, index, more = low, low, high
        while index < more:
            key = keys[index]
            if key < pivot:
                keys[index], keys[less] = keys[less], key
                run[index], run[less] = run[less], run[index]
                less += 1
                index += 1
            elif key > pivot:
                more -= 1
                keys[index], keys[more] = keys[more], key
                run[index], run[more] = run[more], run[index]
            else:
                index += 1
        if less - low > high - more:
            pending[depth], pending[depth + 1] = low, less
            low = more
        else:
            pending[depth], pending[depth + 1] = more, high
            high = less
        depth += 2
