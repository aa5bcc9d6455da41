"""Search the suffix arrays of a snapshot's shards in compiled code.

The functions do not hold the interpreter lock. A snapshot is a table with one record per shard
(`paceline.datastore.rows.ShardRow`), so one call searches any number of shards. The caller must
keep the snapshot alive during a call. Other compiled code may call these functions. Python code
calls `find` and `gather` through the class `Snapshot`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from paceline.datastore.rows import (
    DAMAGED,
    PIVOT_BYTES,
    SUFFIXES_PER_PIVOT,
    Query,
    ShardRow,
    among_pivots,
    edge,
    suffix,
    text_sound,
    token_at,
    within,
)
from paceline.datastore.store_settings import FIRST_LENGTH, SORTED_TOKENS
from paceline.util.compiled import Records, entry_kernel, kernel


class Ranges(NamedTuple):
    """Ranges of the shards' suffix arrays that match the last tokens of each query.

    A rank is an index in the suffix array of a shard. For example, the suffixes of shard s that
    begin with the last 3 tokens of query b have the ranks low[b, 2, s] to high[b, 2, s] - 1.

    Attributes:
        low: First rank of each range, [batch, longest, shards].
        high: Last rank of each range, plus one, [batch, longest, shards]; 0 if the shard contains
            no such suffixes, or if the search did not try this match length.
        lengths: Two lengths per query, in tokens, [batch, 2]: the length of the longest match in
            any shard, and the smallest length that was searched. Both are 0 if there is no match.
    """

    low: NDArray[np.int64]
    high: NDArray[np.int64]
    lengths: NDArray[np.int64]


@kernel
def _are_tokens(row: ShardRow, query: Query) -> bool:
    begin = query.begin
    while (
        begin < query.end
        and 0 <= query.ids[begin] < row.vocab_size
        and query.ids[begin] != row.separator
    ):
        begin += 1
    return begin >= query.end


@kernel
def range_of(
    table: Records[ShardRow], shard: int, ids: NDArray[np.int64], begin: int, end: int
) -> tuple[int, int]:
    """Find the suffixes of a shard that begin with ids[begin:end].

    Only the first SORTED_TOKENS ids are compared. The search takes about 2 log2(suffixes) steps.
    The first steps search the pivots (the first tokens of every SUFFIXES_PER_PIVOT-th suffix),
    which fit into the processor's cache.

    Args:
        table: Shards of a snapshot.
        shard: Index of the shard.
        ids: Token ids.
        begin: Index of the first token of the query in `ids`.
        end: Index after the last token of the query in `ids`.
    Returns:
        The ranks [low, high) in the suffix array; (0, 0) if there are none; (DAMAGED, 0) for a
        damaged shard.
    """
    row = table[shard]
    query = Query(ids, begin, min(end, begin + SORTED_TOKENS))
    if not _are_tokens(row, query):
        return 0, 0
    first, last = among_pivots(row, query)
    if first < 0:
        return DAMAGED, 0
    low, high = (
        max(0, (first - 1) * SUFFIXES_PER_PIVOT + 1),
        min(row.suffix_count, last * SUFFIXES_PER_PIVOT),
    )
    if first == last or (query.end - begin) * row.token_bytes > PIVOT_BYTES:
        return within(row, low, high, 0, query)
    # The pivots contain the whole query, so each end of the range is next to a pivot.
    low = edge(row, low, first * SUFFIXES_PER_PIVOT, 0, query, False)
    high = edge(row, (last - 1) * SUFFIXES_PER_PIVOT + 1, high, 0, query, True)
    return (low, high) if low >= 0 and high >= 0 else (DAMAGED, 0)


@kernel
def narrow(
    table: Records[ShardRow], shard: int, low: int, high: int, depth: int, query: Query
) -> tuple[int, int]:
    """Narrow a range of a suffix array to the suffixes that continue with a query.

    Args:
        table: Shards of a snapshot.
        shard: Index of the shard.
        low: First rank (index in the suffix array) of the range.
        high: Last rank of the range, plus one.
        depth: Number of leading tokens that all suffixes in the range share.
        query: Tokens that must follow these leading tokens.
    Returns:
        The ranks [low, high). (0, 0) if no suffix matches, or if `depth` and the length of the
        query add up to more than SORTED_TOKENS. (DAMAGED, 0) if the shard is damaged.
    """
    row = table[shard]
    if low < 0 or high > row.suffix_count or depth + query.end - query.begin > SORTED_TOKENS:
        return 0, 0
    if not _are_tokens(row, query):
        return 0, 0
    return within(row, low, high, depth, query)


@entry_kernel
def find(
    table: Records[ShardRow],
    ids: NDArray[np.int64],
    offsets: NDArray[np.int64],
    shortest: int,
    enough: int,
    ranges: Ranges,
) -> int:
    """Find the suffixes of each query in the shards, starting with the longest.

    Args:
        table: Shards of a snapshot.
        ids: Tokens of all queries, [total]; query b is ids[offsets[b]:offsets[b + 1]].
        offsets: Offsets of the queries in `ids`, [batch + 1].
        shortest: Length of the shortest suffix to search, in tokens; at least 1.
        enough: Number of matches after which no shorter suffix is searched; 0 means no limit.
        ranges: Output: the matching ranges. The size of the second axis of `ranges.low` is the
            maximum suffix length.
    Returns:
        -1, or the index of a damaged shard. If a shard is damaged, `ranges` is incomplete.
    """
    low, high, lengths = ranges
    low[:], high[:], lengths[:] = 0, 0, 0
    for query in range(offsets.size - 1):
        begin, end = offsets[query], offsets[query + 1]
        longest = 0
        for shard in range(len(table)):
            length = _longest(table, shard, Query(ids, begin, end), low[query], high[query])
            if length < 0:
                return shard
            longest = max(longest, length)
        matches = 0
        for length in range(longest, shortest - 1, -1):
            for shard in range(len(table)):
                if high[query, length - 1, shard] == 0:
                    first, last = range_of(table, shard, ids, end - length, end)
                    if first < 0:
                        return shard
                    low[query, length - 1, shard], high[query, length - 1, shard] = first, last
                matches += high[query, length - 1, shard] - low[query, length - 1, shard]
            lengths[query, 0], lengths[query, 1] = longest, length
            if 0 < enough <= matches:
                break
    return -1


@entry_kernel
def gather(
    table: Records[ShardRow],
    low: NDArray[np.int64],
    high: NDArray[np.int64],
    skip: NDArray[np.int64],
    out: NDArray[np.int64],
    lengths: NDArray[np.int64],
) -> int:
    """Read the text that follows evenly spaced matches of each query.

    The matches of a query are the suffixes in its ranges. This function selects some of them at
    regular intervals.

    Args:
        table: Shards of a snapshot.
        low: First rank (index in the suffix array) of each range, [batch, shards].
        high: Last rank of each range, plus one, [batch, shards].
        skip: Length of each query's match, [batch]. Each continuation begins after this number of
            tokens.
        out: Output: token ids, [batch, count, depth]; depth is at most SORTED_TOKENS. A
            continuation does not extend beyond the end of its document.
        lengths: Output: length of each continuation, [batch, count]; 0 for missing continuations.
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
    """Return the text position of a shard's suffix with a given rank, or DAMAGED."""
    return suffix(table[shard], rank)


@kernel
def read(table: Records[ShardRow], shard: int, position: int, out: NDArray[np.int64]) -> int:
    """Read consecutive tokens from a shard, at most up to the end of the document.

    Args:
        table: Shards of a snapshot.
        shard: Index of the shard.
        position: Text position of the first token.
        out: Output: tokens, [n]; n is at most SORTED_TOKENS.
    Returns:
        The number of tokens that were read, or DAMAGED if the shard is damaged.
    """
    row = table[shard]
    max_tokens = min(out.size, row.text_size - position, SORTED_TOKENS)
    if max_tokens <= 0 or position < 0:
        return 0
    if not text_sound(row, position, max_tokens):
        return DAMAGED
    for index in range(max_tokens):
        token = token_at(row, position + index)
        if token == row.separator or token >= row.vocab_size:
            return index
        out[index] = token
    return int(max_tokens)


@kernel
def _longest(
    table: Records[ShardRow],
    shard: int,
    query: Query,
    low: NDArray[np.int64],
    high: NDArray[np.int64],
) -> int:
    """Return the length of the longest suffix of a query that occurs in a shard.

    The search first doubles the length, then bisects. It writes the ranges that it finds to `low`
    and `high`, [longest, shards].
    """
    max_length = min(query.end - query.begin, len(low), SORTED_TOKENS)
    good, bad, length = 0, max_length + 1, min(FIRST_LENGTH, max_length)
    while good + 1 < bad:
        first, last = range_of(table, shard, query.ids, query.end - length, query.end)
        if first < 0:
            return DAMAGED
        if first < last:
            low[length - 1, shard], high[length - 1, shard] = first, last
            good = length
        else:
            bad = length
        length = min(2 * good, max_length) if bad > max_length else (good + bad) // 2
    return good
