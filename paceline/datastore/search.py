"""Searching a snapshot: ranges of suffix arrays, and what stands behind them. Compiled, without the
interpreter lock.

A snapshot is a table with a record for each shard (`paceline.datastore.rows.ShardRow`), so that one
call sees any number of shards. Whoever passes a table keeps the snapshot it came from alive for as
long as the call lasts. Other compiled code may call these functions; `Snapshot` wraps `find` and
`gather` for Python.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from paceline.datastore.rows import (
    DAMAGED,
    PIVOT_BYTES,
    SUFFIXES_PER_PIVOT,
    ShardRow,
    among_pivots,
    edge,
    suffix,
    text_sound,
    token_at,
    within,
)
from paceline.datastore.store_settings import SORTED
from paceline.util.compiled import Records, kernel

_FIRST_LENGTH = 4  # the length of a match that is tried first


@kernel
def _are_tokens(row: ShardRow, ids: NDArray[np.int64], begin: int, end: int) -> bool:
    while begin < end and 0 <= ids[begin] < row.vocab_size and ids[begin] != row.separator:
        begin += 1
    return begin >= end


@kernel
def range_of(
    table: Records[ShardRow], shard: int, ids: NDArray[np.int64], begin: int, end: int
) -> tuple[int, int]:
    """Find the ranks [low, high) of the suffixes of a shard that begin with ids[begin:end], of
    which the first SORTED count.

    (0, 0) where none does; (DAMAGED, 0) where the shard cannot be believed. Some 2 log2(suffixes)
    steps, the upper ones among the pivots, which stay in the processor's cache.
    """
    row = table[shard]
    end = min(end, begin + SORTED)
    if not _are_tokens(row, ids, begin, end):
        return 0, 0
    first, last = among_pivots(row, ids, begin, end)
    if first < 0:
        return DAMAGED, 0
    low, high = (
        max(0, (first - 1) * SUFFIXES_PER_PIVOT + 1),
        min(row.suffix_count, last * SUFFIXES_PER_PIVOT),
    )
    if first == last or (end - begin) * row.token_bytes > PIVOT_BYTES:
        return within(row, low, high, 0, ids, begin, end)
    # the pivots have all of the ids: each edge is beside one
    low = edge(row, low, first * SUFFIXES_PER_PIVOT, 0, ids, begin, end, False)
    high = edge(row, (last - 1) * SUFFIXES_PER_PIVOT + 1, high, 0, ids, begin, end, True)
    return (low, high) if low >= 0 and high >= 0 else (DAMAGED, 0)


@kernel
def narrow(
    table: Records[ShardRow],
    shard: int,
    low: int,
    high: int,
    depth: int,
    ids: NDArray[np.int64],
    begin: int,
    end: int,
) -> tuple[int, int]:
    """Find the part [low, high) of a range whose first `depth` tokens agree where ids[begin:end]
    come next.

    (0, 0) if it is empty or deeper than SORTED tokens; (DAMAGED, 0).
    """
    row = table[shard]
    if low < 0 or high > row.suffix_count or depth + end - begin > SORTED:
        return 0, 0
    if not _are_tokens(row, ids, begin, end):
        return 0, 0
    return within(row, low, high, depth, ids, begin, end)


@kernel
def find(
    table: Records[ShardRow],
    ids: NDArray[np.int64],
    offsets: NDArray[np.int64],
    shortest: int,
    enough: int,
    low: NDArray[np.int64],
    high: NDArray[np.int64],
    lengths: NDArray[np.int64],
) -> int:
    """Find the ranges of the suffixes of each query, from the longest that occurs down to
    `shortest`.

    Args:
        ids, offsets: [total], [batch + 1] query b is ids[offsets[b]:offsets[b + 1]].
        enough: stop shortening when the ranges hold this many suffixes together; 0 = never.
        low, high: [batch, longest, shards] filled: the range of the last m ids of query b is at [b,
            m - 1]; empty: (0, 0).
        lengths: [batch, 2] filled: the longest suffix that occurs in any shard, and the shortest
            one searched; 0, 0 if none.
    Returns:
        -1, or the index of a damaged shard; then the rest is not filled.
    """
    low[:], high[:], lengths[:] = 0, 0, 0
    for query in range(offsets.size - 1):
        begin, end = offsets[query], offsets[query + 1]
        longest = 0
        for shard in range(len(table)):
            length = _longest(table, shard, ids, begin, end, low[query], high[query])
            if length < 0:
                return shard
            longest = max(longest, length)
        found = 0
        for length in range(longest, shortest - 1, -1):
            for shard in range(len(table)):
                if high[query, length - 1, shard] == 0:
                    first, last = range_of(table, shard, ids, end - length, end)
                    if first < 0:
                        return shard
                    low[query, length - 1, shard], high[query, length - 1, shard] = first, last
                found += high[query, length - 1, shard] - low[query, length - 1, shard]
            lengths[query, 0], lengths[query, 1] = longest, length
            if 0 < enough <= found:
                break
    return -1


@kernel
def gather(
    table: Records[ShardRow],
    low: NDArray[np.int64],
    high: NDArray[np.int64],
    skip: NDArray[np.int64],
    out: NDArray[np.int64],
    lengths: NDArray[np.int64],
) -> int:
    """Read what follows in the store: continuations at regular intervals over the ranges of each
    query.

    Args:
        low, high: [batch, shards] ranges; skip: [batch] tokens of each suffix to leave out: the
            length of the match.
        out: [batch, count, depth] filled with token ids, `depth` at most SORTED; each ends with its
            document.
        lengths: [batch, count] filled: tokens of each, 0 beyond the last one.
    Returns:
        -1, or the index of a damaged shard.
    """
    lengths[:] = 0
    for query in range(len(low)):
        total = 0
        for shard in range(len(table)):
            total += high[query, shard] - low[query, shard]
        wanted = min(out.shape[1], total)
        shard, before = 0, 0
        for index in range(wanted):
            rank = index * total // wanted - before
            while rank >= high[query, shard] - low[query, shard]:
                size = high[query, shard] - low[query, shard]
                before, rank, shard = before + size, rank - size, shard + 1
            position = suffix(table[shard], low[query, shard] + rank)
            if position < 0:
                return shard
            length = read(table, shard, position + skip[query], out[query, index])
            if length < 0:
                return shard
            lengths[query, index] = length
    return -1


@kernel
def suffix_at(table: Records[ShardRow], shard: int, rank: int) -> int:
    """Return the position in the text of a shard of the suffix with this rank; DAMAGED if it
    cannot be had.
    """
    return suffix(table[shard], rank)


@kernel
def read(table: Records[ShardRow], shard: int, position: int, out: NDArray[np.int64]) -> int:
    """Fill `out`, at most SORTED long, with the tokens from `position` of a shard to the end of the
    document at most.

    Returns:
        how many there are; DAMAGED.
    """
    row = table[shard]
    most = min(out.size, row.text_size - position, SORTED)
    if most <= 0 or position < 0:
        return 0
    if not text_sound(row, position, most):
        return DAMAGED
    for index in range(most):
        token = token_at(row, position + index)
        if token == row.separator or token >= row.vocab_size:
            return index
        out[index] = token
    return int(most)


@kernel
def _longest(
    table: Records[ShardRow],
    shard: int,
    ids: NDArray[np.int64],
    begin: int,
    end: int,
    low: NDArray[np.int64],
    high: NDArray[np.int64],
) -> int:
    """Return how many last ids of ids[begin:end] occur in a shard, up to len(low);
    what was found on the way goes to low, high."""
    most = min(end - begin, len(low), SORTED)
    good, bad, length = 0, most + 1, min(_FIRST_LENGTH, most)
    while good + 1 < bad:
        first, last = range_of(table, shard, ids, end - length, end)
        if first < 0:
            return DAMAGED
        if first < last:
            low[length - 1, shard], high[length - 1, shard] = first, last
            good = length
        else:
            bad = length
        length = min(2 * good, most) if bad > most else (good + bad) // 2
    return good
