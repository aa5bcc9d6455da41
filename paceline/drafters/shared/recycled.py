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
_CACHE_LINE = 64  # bytes


class ContextSlot:
    """Hold the context of one index."""

    key: Annotated[Any, np.uint64]  # 0 = the index is free
    written: int  # number of the writing; a newer one is higher


class Successors:
    """Hold the likeliest tokens after one context, ended by a probability of 0."""

    tokens: Annotated[Any, np.int32, TOP]
    probs: Annotated[Any, np.float32, TOP]  # at temperature 1


SLOT, ENTRY = record_dtype(ContextSlot), record_dtype(Successors)


class SuccessorTable(NamedTuple):
    """Hold the cached distributions.

    A bucket of slots and an entry each fill one cache line, because most time is spent on waiting
    for memory.

    Attributes:
        slots: [rows] contexts, in buckets of `_WAYS`.
        entries: [rows] what follows them.
        clock: [1] number of writes.
    """

    slots: Records[ContextSlot]
    entries: Records[Successors]
    clock: IntArray


def new_table(rows: int) -> SuccessorTable:
    """Return an empty table of at least `rows` entries."""
    rows = max(1, -(-rows // _WAYS)) * _WAYS
    return SuccessorTable(_zeros(rows, SLOT), _zeros(rows, ENTRY), np.zeros(1, dtype=np.int64))


def _zeros(rows: int, dtype: Any) -> Any:
    """Return zeros that begin at a cache line."""
    size = rows * dtype.itemsize
    memory = np.zeros(size + _CACHE_LINE, dtype=np.uint8)
    first = -memory.ctypes.data % _CACHE_LINE
    return memory[first : first + size].view(dtype)


@kernel
def size_of(entry: Successors) -> int:
    """Return the number of tokens in an entry."""
    size = 0
    while size < TOP and entry.probs[size] > 0.0:
        size += 1
    return size


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
    return int((key >> np.uint64(20)) % np.uint64(len(table.slots) // _WAYS)) * _WAYS


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
            if table.slots[index].key == key:
                return index, size
    return ABSENT, 0


@kernel
def _index_for(table: SuccessorTable, key: Any) -> int:
    """Return the index of a key, or the oldest index of its bucket."""
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
    """Return the entry of a key, or the oldest one of its bucket, marked as newest."""
    index = _index_for(table, key)
    table.clock[0] += 1
    slot = table.slots[index]
    slot.key, slot.written = key, table.clock[0]
    return table.entries[index]


@kernel
def _write(
    table: SuccessorTable, key: Any, token_ids: IntArray, probs: NDArray[np.float32]
) -> None:
    """Cache the distribution after a context.

    Args:
        table: Cached distributions.
        key: Hash of the context.
        token_ids: [k] tokens, likeliest first.
        probs: [k] their probabilities.
    """
    entry = _entry_for(table, key)
    size, count = 0, min(len(token_ids), TOP)
    while size < count and probs[size] >= MIN_CACHED_PROB:
        entry.tokens[size], entry.probs[size] = token_ids[size], probs[size]
        size += 1
    if size < TOP:
        entry.probs[size] = 0.0


class VerifiedTrees(NamedTuple):
    """Hold the trees that the target verified in a step, one after the other.

    Attributes:
        newest: Up to LONGEST_KEY newest tokens of each request, the root last.
        newest_ends: [requests] end of each request's newest tokens.
        drafted: [nodes] tokens of the nodes.
        parents: [nodes] parent of each node in its tree; -1 for the root.
        ends: [requests] end of the nodes of each tree.
    """

    newest: IntArray
    newest_ends: IntArray
    drafted: IntArray
    parents: IntArray
    ends: IntArray


@compiled
def remember(
    table: SuccessorTable,
    keys: int,
    trees: VerifiedTrees,
    token_ids: IntArray,
    probs: NDArray[np.float32],
) -> None:
    """Cache the target's distributions after every node of the trees in a step.

    Args:
        table: Cached distributions.
        keys: Maximum number of tokens in a context.
        trees: The verified trees.
        token_ids: [requests + nodes, k] likeliest tokens of all trees, as in `TopTokens`.
        probs: [requests + nodes, k] their probabilities; rows of zeros are skipped.
    """
    rows = len(token_ids)
    tails = np.empty((rows, LONGEST_KEY), dtype=np.int64)
    known = np.empty(rows, dtype=np.int64)
    begin, newest_begin, root = 0, 0, 0
    for tree in range(len(trees.ends)):
        end, newest_end = trees.ends[tree], trees.newest_ends[tree]
        known[root] = newest_end - newest_begin
        tails[root, LONGEST_KEY - known[root] :] = trees.newest[newest_begin:newest_end]
        _fill_tails(trees, begin, end, root, tails, known)
        begin, newest_begin, root = end, newest_end, root + 1 + end - begin
    _write_rows(table, keys, tails, known, token_ids, probs)


@kernel
def _fill_tails(
    trees: VerifiedTrees, begin: int, end: int, root: int, tails: IntArray, known: IntArray
) -> None:
    """Fill the newest tokens at the nodes of one tree.

    Args:
        trees: The verified trees.
        begin: First node of the tree.
        end: End of its nodes.
        root: Row of the root; the rows of the nodes follow.
        tails: [rows, LONGEST_KEY] newest tokens; the root's row is filled.
        known: [rows] number of tokens that are known; the root's row is filled.
    """
    for node in range(begin, end):
        row, above = root + 1 + node - begin, root + 1 + trees.parents[node]
        for index in range(LONGEST_KEY - 1):
            tails[row, index] = tails[above, index + 1]
        tails[row, LONGEST_KEY - 1] = trees.drafted[node]
        known[row] = min(known[above] + 1, LONGEST_KEY)


@kernel
def _write_rows(
    table: SuccessorTable,
    keys: int,
    tails: IntArray,
    known: IntArray,
    token_ids: IntArray,
    probs: NDArray[np.float32],
) -> None:
    """Cache the distributions of all rows whose probabilities are known."""
    for row in range(len(tails)):
        if probs[row, 0] > 0.0:
            for size in range(1, min(keys, known[row]) + 1):
                _write(table, key_of(tails[row], size), token_ids[row], probs[row])


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
        for index in range(TOP):
            entry.tokens[index] = tokens[row, index]
            entry.probs[index] = probs[row, index] if index < sizes[row] else 0.0
