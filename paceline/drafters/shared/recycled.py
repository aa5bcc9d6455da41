"""Cache the target's next-token distributions by context (Token Recycling).

Luo et al. 2024, "Turning Trash into Treasure: Accelerating Inference of Large Language Models with
Token Recycling" (section 3). When the target verifies a draft tree, it computes its distribution
after every node, including rejected nodes. The paper caches the 8 most likely next tokens for each
single token. This module caches them for each context of 1 to `LONGEST_KEY` tokens. A look-up uses
the longest context that the table contains.

The table has a fixed size. A hash bucket has room for `_WAYS` contexts, and a new context replaces
the oldest context in its bucket. Contexts are stored as 64-bit hashes. If two contexts have the
same hash, a draft token may be wrong.
"""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paceline.core.tree import IntArray
from paceline.cpu.simd_f32x8 import prefetch
from paceline.drafters.shared.table_settings import LONGEST_KEY, MIN_CACHED_PROB
from paceline.util.compiled import Records, compiled, kernel, record_dtype

TOP = 8  # number of most likely tokens cached per distribution
ABSENT = -1
_WAYS = 4
_CACHE_LINE = 64  # bytes


class ContextSlot:
    """A context for which the table caches a next-token distribution.

    Attributes:
        key: Hash of the context; 0 if the slot is free.
        written: Value of the table's clock at the last write; higher values are more recent.
    """

    key: Annotated[Any, np.uint64]
    written: int


class Successors:
    """The most likely next tokens after one context.

    Attributes:
        tokens: Token ids, most likely first, [TOP].
        probs: Probabilities at temperature 1, [TOP]. If there are fewer tokens, 0 ends the list.
    """

    tokens: Annotated[Any, np.int32, TOP]
    probs: Annotated[Any, np.float32, TOP]


SLOT, ENTRY = record_dtype(ContextSlot), record_dtype(Successors)


class SuccessorTable(NamedTuple):
    """A hash table of next-token distributions, cached by context.

    The key of a distribution is a hash of its context, which consists of the tokens before it. A
    look-up spends most of its time waiting for memory. To save time, the contexts in a hash bucket
    fill exactly one cache line, and the next tokens of one context fill another cache line.

    Attributes:
        slots: Contexts, [rows]. Each hash bucket consists of `_WAYS` slots.
        entries: Most likely next tokens after the context of each slot, [rows].
        clock: Number of writes so far, [1].
    """

    slots: Records[ContextSlot]
    entries: Records[Successors]
    clock: IntArray


def new_table(rows: int) -> SuccessorTable:
    """Return an empty table with room for at least `rows` contexts."""
    rows = max(1, -(-rows // _WAYS)) * _WAYS
    return SuccessorTable(_zeros(rows, SLOT), _zeros(rows, ENTRY), np.zeros(1, dtype=np.int64))


def _zeros(rows: int, dtype: Any) -> Any:
    """Return an array of zeros whose memory begins at the start of a cache line."""
    size = rows * dtype.itemsize
    memory = np.zeros(size + _CACHE_LINE, dtype=np.uint8)
    first = -memory.ctypes.data % _CACHE_LINE
    return memory[first : first + size].view(dtype)


@kernel
def size_of(entry: Successors) -> int:
    """Return the number of next tokens that are stored in an entry."""
    size = 0
    while size < TOP and entry.probs[size] > 0.0:
        size += 1
    return size


@kernel
def key_of(tail: IntArray, size: int) -> Any:
    """Return a hash of the last `size` tokens of `tail`, which is never 0."""
    value = np.uint64(size)
    for index in range(len(tail) - size, len(tail)):
        value = (value ^ np.uint64(tail[index] + 1)) * np.uint64(0x9E3779B97F4A7C15)
        value = value ^ (value >> np.uint64(29))
    return value | np.uint64(1)


@kernel
def _bucket(table: SuccessorTable, key: Any) -> int:
    return int((key >> np.uint64(20)) % np.uint64(len(table.slots) // _WAYS)) * _WAYS


@kernel
def look_up(table: SuccessorTable, tail: IntArray, known: int) -> tuple[int, int]:
    """Find the cached distribution of the longest context at the end of the text.

    Args:
        table: Cached distributions.
        tail: Newest tokens of the text, [LONGEST_KEY].
        known: Maximum number of tokens in the context.
    Returns:
        Index of the table entry, and length of its context in tokens; (ABSENT, 0) if the table has
        no entry for any of these contexts.
    """
    for size in range(known, 0, -1):
        key = key_of(tail, size)
        first = _bucket(table, key)
        for index in range(first, first + _WAYS):
            if table.slots[index].key == key:
                return index, size
    return ABSENT, 0


@kernel
def _index_for(table: SuccessorTable, key: Any) -> int:
    """Return the index of the entry in which to store a context.

    A context that is not in the table replaces the oldest context in its hash bucket.
    """
    first = _bucket(table, key)
    chosen = first
    for index in range(first, first + _WAYS):
        slot = table.slots[index]
        if slot.key == key:
            chosen = index
            break
        if slot.written < table.slots[chosen].written:
            chosen = index
    return chosen


@kernel
def _entry_for(table: SuccessorTable, key: Any) -> Any:
    """Return the entry in which to store a context, and mark it as the newest.

    A context that is not in the table replaces the oldest context in its hash bucket.
    """
    index = _index_for(table, key)
    table.clock[0] += 1
    slot = table.slots[index]
    slot.key, slot.written = key, table.clock[0]
    return table.entries[index]


@kernel
def _write(
    table: SuccessorTable, key: Any, token_ids: IntArray, probs: NDArray[np.float32]
) -> None:
    """Cache the distribution that follows a context.

    Args:
        table: Cached distributions.
        key: Hash of the context.
        token_ids: Tokens, most likely first, [k].
        probs: Probabilities of these tokens, [k].
    """
    entry = _entry_for(table, key)
    size, count = 0, min(len(token_ids), TOP)
    while size < count and probs[size] >= MIN_CACHED_PROB:
        entry.tokens[size], entry.probs[size] = token_ids[size], probs[size]
        size += 1
    if size < TOP:
        entry.probs[size] = 0.0


@kernel
def cache_distributions(
    table: SuccessorTable,
    max_context: int,
    newest: IntArray,
    nodes: IntArray,
    scratch: tuple[IntArray, IntArray, NDArray[np.uint64]],
    top: tuple[IntArray, NDArray[np.float32]],
) -> None:
    """Cache the target's distributions after the root and after every node of a tree.

    The key of a cached distribution is a context: the last 1, 2, ... or `max_context` tokens up to
    and including the root or node.

    Args:
        table: Cached distributions.
        max_context: Maximum number of tokens in a context.
        newest: Newest tokens of the text, at most LONGEST_KEY; the last one is the root.
        nodes: Tokens of all nodes, followed by the parents of all nodes, [2 * nodes]. Parent -1 is
            the root.
        scratch: Three arrays to overwrite. Each has one row for the root, then one for each node.
            First array: last tokens up to the root or node, [1 + nodes, LONGEST_KEY].
            Second array: number of these tokens, [1 + nodes].
            Third array: hash of each context, [1 + nodes, LONGEST_KEY].
        top: Most likely tokens after the root and each node, and their probabilities, each
            [1 + nodes, k], as in `TopTokens`. Rows of zeros are skipped.
    """
    tails, known, keys = scratch
    token_ids, probs = top
    known[0] = len(newest)
    for index in range(len(newest)):
        tails[0, LONGEST_KEY - len(newest) + index] = newest[index]
    num_nodes = len(nodes) // 2
    for node in range(num_nodes):
        row, above = 1 + node, 1 + nodes[num_nodes + node]
        for index in range(LONGEST_KEY - 1):
            tails[row, index] = tails[above, index + 1]
        tails[row, LONGEST_KEY - 1] = nodes[node]
        known[row] = min(known[above] + 1, LONGEST_KEY)
    # Most of the time is spent waiting for memory, so all buckets are fetched at once.
    slots: Any = table.slots
    for row in range(len(known)):
        if probs[row, 0] > 0.0:
            for size in range(1, min(max_context, known[row]) + 1):
                keys[row, size - 1] = key_of(tails[row], size)
                bucket = _bucket(table, keys[row, size - 1])
                prefetch(slots.ctypes.data + bucket * slots.itemsize)
    for row in range(len(known)):
        if probs[row, 0] > 0.0:
            for size in range(1, min(max_context, known[row]) + 1):
                _write(table, keys[row, size - 1], token_ids[row], probs[row])


@compiled
def restore(
    table: SuccessorTable,
    keys: NDArray[np.uint64],
    sizes: Any,
    tokens: Any,
    probs: NDArray[np.float32],
) -> None:
    """Write saved entries to a table, starting with the oldest.

    Args:
        table: Table to fill.
        keys: Hashes of the contexts, oldest entry first, [n].
        sizes: Number of next tokens per entry, [n].
        tokens: Token ids, [n, TOP].
        probs: Probabilities, [n, TOP].
    """
    for row in range(len(keys)):
        entry = _entry_for(table, keys[row])
        for index in range(TOP):
            entry.tokens[index] = tokens[row, index]
            entry.probs[index] = probs[row, index] if index < sizes[row] else 0.0
