"""The target's own next-token distributions, kept: what it said would follow the newest tokens, the
last time it saw them.

Luo et al. 2024, "Turning Trash into Treasure: Accelerating Inference of Large Language Models with
Token Recycling" (section 3): every verification computes the target's distribution after every
node, also behind rejected ones. The paper keeps the best 8 tokens after each single token; here
keys have one to `LONGEST_KEY` tokens, and the longest one that is known is asked first.

A table of fixed size: a key's entry is one of the `_WAYS` of its bucket, and a new key takes the
place of the oldest there. Keys are hashes of 64 bits; two that collide cost a wrong guess.
"""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paceline.core.tree import IntArray
from paceline.util.compiled import Records, compiled, kernel, record_dtype
from paceline.util.limits import LONGEST_KEY

TOP = 8  # tokens kept of a distribution
ABSENT = -1
_WAYS = 4
_LEAST_PROB = 0.001  # of a token that is kept


class Successors:
    """What followed a key."""

    key: Annotated[Any, np.uint64]  # 0 = the place is free
    written: int  # number of the writing; a newer one is higher
    size: int  # tokens that follow
    tokens: Annotated[Any, np.int64, TOP]
    probs: Annotated[Any, np.float32, TOP]  # at temperature 1


ENTRY = record_dtype(Successors)


class SuccessorTable(NamedTuple):
    """Attributes:
    entries: [rows], in buckets of `_WAYS`. clock: [1], how many writings there were.
    """

    entries: Records[Successors]
    clock: IntArray


def new_table(rows: int) -> SuccessorTable:
    """Return an empty table of at least `rows` entries."""
    buckets = max(1, -(-rows // _WAYS))
    return SuccessorTable(np.zeros(buckets * _WAYS, dtype=ENTRY), np.zeros(1, dtype=np.int64))


@kernel
def key_of(tail: IntArray, size: int) -> Any:
    """Hash the last `size` of some tokens; never 0."""
    value = np.uint64(size)
    for place in range(len(tail) - size, len(tail)):
        value = (value ^ np.uint64(tail[place] + 1)) * np.uint64(0x9E3779B97F4A7C15)
        value = value ^ (value >> np.uint64(29))
    return value | np.uint64(1)


@kernel
def _bucket(table: SuccessorTable, key: Any) -> int:
    return int((key >> np.uint64(20)) % np.uint64(len(table.entries) // _WAYS)) * _WAYS


@kernel
def look_up(table: SuccessorTable, tail: IntArray, known: int) -> tuple[int, int]:
    """Find what followed the newest tokens.

    Args:
        tail: [LONGEST_KEY] the newest tokens. known: how many of them may be a key.
    Returns:
        the place of the entry of the longest key that is known, and the length of that key;
        (ABSENT, 0) if none is.
    """
    for size in range(known, 0, -1):
        key = key_of(tail, size)
        first = _bucket(table, key)
        for place in range(first, first + _WAYS):
            if table.entries[place].key == key:
                return place, size
    return ABSENT, 0


@kernel
def _place_for(table: SuccessorTable, key: Any) -> Any:
    """Return the entry that a key has, or gets in the place of the oldest of its bucket, marked
    as the newest.
    """
    first = _bucket(table, key)
    chosen = first
    for place in range(first, first + _WAYS):
        entry = table.entries[place]
        if entry.key == key:
            chosen = place
            break
        if entry.written < table.entries[chosen].written:
            chosen = place
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
    """Keep what follows a key of the last `size` tokens: token_ids and probs [offset : offset +
    count], the likeliest first.
    """
    entry = _place_for(table, key_of(tail, size))
    kept = 0
    while kept < min(count, TOP) and probs[offset + kept] >= _LEAST_PROB:
        entry.tokens[kept], entry.probs[kept] = token_ids[offset + kept], probs[offset + kept]
        kept += 1
    entry.size = kept


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
    """Keep what the target said after the root and after every node of a tree, under keys of 1 to
    `keys` tokens.

    Args:
        newest: up to LONGEST_KEY tokens, the root's the last.
        drafted, parents: [n] the nodes.
        token_ids, probs: [1 + n, k], as in `TopTokens`; rows that are not known change nothing.
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
    """Put entries into a table, the oldest first.

    Args:
        keys, sizes: [n], as in `Successors`. tokens, probs: [n, TOP].
    """
    for row in range(len(keys)):
        entry = _place_for(table, keys[row])
        entry.size = sizes[row]
        for index in range(TOP):
            entry.tokens[index], entry.probs[index] = tokens[row, index], probs[row, index]
