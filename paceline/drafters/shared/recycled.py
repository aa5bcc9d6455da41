"""Cache the target's next-token distributions by their context (Token Recycling).

Luo et al. 2024, "Turning Trash into Treasure: Accelerating Inference of Large Language Models with
Token Recycling" (section 3). Every verification computes the target's distribution after every
node, including rejected nodes. The paper caches the best 8 tokens after each single token. Contexts
here have 1 to `LONGEST_KEY` tokens, and the longest known context is used.

The table has a fixed size. A bucket holds `_WAYS` entries, and a new context replaces the oldest
entry of its bucket. Contexts are 64-bit hashes; a collision costs a wrong draft token.
"""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paceline.core.tree import IntArray
from paceline.drafters.shared.table_settings import LONGEST_KEY, MIN_CACHED_PROB
from paceline.util.compiled import Records, compiled, kernel, record_dtype

TOP = 8  # tokens kept of a distribution
ABSENT = -1
_WAYS = 4


class Successors:
    """Hold the likeliest tokens after one context."""

    key: Annotated[Any, np.uint64]  # 0 = the index is free
    written: int  # number of the writing; a newer one is higher
    size: int  # tokens that follow
    tokens: Annotated[Any, np.int64, TOP]
    probs: Annotated[Any, np.float32, TOP]  # at temperature 1


ENTRY = record_dtype(Successors)


class SuccessorTable(NamedTuple):
    """Hold the cached distributions.

    Attributes:
        entries: [rows] in buckets of `_WAYS`.
        clock: [1] number of writes.
    """

    entries: Records[Successors]
    clock: IntArray


def new_table(rows: int) -> SuccessorTable:
    """Return an empty table of at least `rows` entries."""
    buckets = max(1, -(-rows // _WAYS))
    return SuccessorTable(np.zeros(buckets * _WAYS, dtype=ENTRY), np.zeros(1, dtype=np.int64))


@kernel
def key_of(tail: IntArray, size: int) -> Any:
    """Hash the last `size` tokens of `tail`; the result is never 0."""
    value = np.uint64(size)
    for index in range(len(tail) - size, len(tail)):
        value = (value ^ np.uint64(tail[index] + 1)) * np.uint64(0x9E3779B97F4A7C15)
        value = value ^ (value >> np.uint64(29))
    return value | np.uint64(1)


@kernel
def _bucket(table: SuccessorTable, key: Any) -> int:
    return int((key >> np.uint64(20)) % np.uint64(len(table.entries) // _WAYS)) * _WAYS


@kernel
def look_up(table: SuccessorTable, tail: IntArray, known: int) -> tuple[int, int]:
    """Find the entry of the longest cached context.

    Args:
        table: Cached distributions.
        tail: [LONGEST_KEY] newest tokens.
        known: Maximum number of tokens in the context.
    Returns:
        Index of the entry and tokens of its context; (ABSENT, 0) if there is none.
    """
    for size in range(known, 0, -1):
        key = key_of(tail, size)
        first = _bucket(table, key)
        for index in range(first, first + _WAYS):
            if table.entries[index].key == key:
                return index, size
    return ABSENT, 0


@kernel
def _entry_for(table: SuccessorTable, key: Any) -> Any:
    """Return the entry of a key, or the oldest one of its bucket, marked as newest."""
    first = _bucket(table, key)
    chosen = first
    for index in range(first, first + _WAYS):
        entry = table.entries[index]
        if entry.key == key:
            chosen = index
            break
        if entry.written < table.entries[chosen].written:
            chosen = index
    table.clock[0] += 1
    entry = table.entries[chosen]
    entry.key, entry.written = key, table.clock[0]
    return entry


@kernel
def write(
    table: SuccessorTable,
    tail: IntArray,
    size: int,
    token_ids: Any,
    probs: Any,
    offset: int,
    count: int,
) -> None:
    """Cache the distribution after the last `size` tokens of `tail`.

    The tokens are token_ids[offset : offset + count], likeliest first, with their probabilities.
    """
    entry = _entry_for(table, key_of(tail, size))
    size = 0
    while size < min(count, TOP) and probs[offset + size] >= MIN_CACHED_PROB:
        entry.tokens[size], entry.probs[size] = token_ids[offset + size], probs[offset + size]
        size += 1
    entry.size = size


@compiled
def remember(
    table: SuccessorTable,
    newest: IntArray,
    keys: int,
    drafted: IntArray,
    parents: IntArray,
    token_ids: IntArray,
    probs: NDArray[np.float32],
) -> None:
    """Cache the target's distributions after every node of a tree.

    Args:
        table: Cached distributions.
        newest: Up to LONGEST_KEY newest tokens, the root last.
        keys: Maximum number of tokens in a context.
        drafted: [n] tokens of the nodes.
        parents: [n] parents of the nodes.
        token_ids: [1 + n, k] likeliest tokens, as in `TopTokens`.
        probs: [1 + n, k] their probabilities; rows of zeros are skipped.
    """
    rows, width = token_ids.shape
    tails = np.empty((rows, LONGEST_KEY), dtype=np.int64)
    known = np.empty(rows, dtype=np.int64)
    flat_ids, flat_probs = token_ids.ravel(), probs.ravel()
    for row in range(rows):
        if row == 0:
            known[0] = len(newest)
            tails[0, LONGEST_KEY - len(newest) :] = newest
        else:
            above = parents[row - 1] + 1
            tails[row, :-1] = tails[above, 1:]
            tails[row, -1] = drafted[row - 1]
            known[row] = min(known[above] + 1, LONGEST_KEY)
        if flat_probs[row * width] <= 0.0:  # not known
            continue
        for size in range(1, min(keys, known[row]) + 1):
            write(table, tails[row], size, flat_ids, flat_probs, row * width, width)


@compiled
def restore(
    table: SuccessorTable,
    keys: NDArray[np.uint64],
    sizes: Any,
    tokens: Any,
    probs: NDArray[np.float32],
) -> None:
    """Write entries into a table, the oldest first.

    Args:
        table: Table to fill.
        keys: [n] context hashes.
        sizes: [n] number of tokens per entry.
        tokens: [n, TOP].
        probs: [n, TOP].
    """
    for row in range(len(keys)):
        entry = _entry_for(table, keys[row])
        entry.size = sizes[row]
        for index in range(TOP):
            entry.tokens[index], entry.probs[index] = tokens[row, index], probs[row, index]
