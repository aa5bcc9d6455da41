"""Look up suffixes of the text in the datastore, and sample their matches."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from paceline.datastore.rows import DAMAGED, Query, ShardRow, suffix, text_sound, token_at
from paceline.datastore.search import range_of
from paceline.drafters.sssd.pointers import ENDS, UNREADABLE, Pointer, RankRange
from paceline.drafters.sssd.pool import Pool, put
from paceline.drafters.sssd.settings import FIRST_SIZE, LONGEST, STORE_SIZES
from paceline.util.compiled import Records, kernel

_UNKNOWN = -1  # value in `Pool.totals` for a suffix that was not looked up


class SuffixMatches(NamedTuple):
    """The occurrences of one suffix of the text in the datastore.

    Attributes:
        size: Number of tokens in the suffix.
        ranges: Range of the occurrences in each shard's suffix array, [shards].
        total: Number of occurrences in all shards.
    """

    size: int
    ranges: Records[RankRange]
    total: int


class StoreLimits(NamedTuple):
    """Limits on a search of the datastore.

    A pointer marks the token that follows an earlier occurrence (match) of the newest tokens.

    Attributes:
        below: Maximum match length plus 1, in tokens; the search skips longer matches.
        enough: Once the search has added this many pointers, it does not look up shorter suffixes.
        samples: Maximum number of pointers sampled per suffix.
    """

    below: int
    enough: int
    samples: int


@kernel
def point_into_store(
    table: Records[ShardRow], pool: Pool, count: int, query: Query, limits: StoreLimits
) -> tuple[int, int]:
    """Add pointers to matches in the datastore, with the longest matches first.

    A pointer marks the token that follows an earlier occurrence (match) of the newest tokens.

    Args:
        table: Shards of the datastore.
        pool: Match pointers of the tree.
        count: Number of pointers in the pool so far.
        query: Text to match.
        limits: Limits on the search.
    Returns:
        The new number of pointers, and the shortest match length that was searched. If a shard is
        damaged: (DAMAGED, index of the shard).
    """
    first, upper = count, limits.below
    size_index = len(STORE_SIZES) - 1
    while size_index >= 0 and (
        STORE_SIZES[size_index] >= limits.below or STORE_SIZES[size_index] > query.end - query.begin
    ):
        size_index -= 1
    pool.totals[:] = _UNKNOWN
    if query.end == LONGEST:  # the root, whose longest match is not known yet
        size_index, shard = _longest_that_occurs(table, pool, size_index)
        if shard >= 0:
            return DAMAGED, shard
    while size_index >= 0 and count - first < limits.enough:
        size, ranges, total, shard = (
            STORE_SIZES[size_index],
            pool.ranges[size_index],
            pool.totals[size_index],
            -1,
        )
        if total == _UNKNOWN:
            total, shard = look_up(table, pool.tail, query.end - size, query.end, ranges)
        if total > 0:
            matches = SuffixMatches(size, ranges, total)
            count, shard = sample(table, pool, count, query, matches, upper, limits.samples)
        if shard >= 0:
            return DAMAGED, shard
        upper = size
        size_index -= 1
    return count, upper


@kernel
def _longest_that_occurs(table: Records[ShardRow], pool: Pool, size_index: int) -> tuple[int, int]:
    """Find the request's longest suffix that occurs in the datastore, by bisection.

    Returns:
        A pair. First value: index of the suffix's size in `STORE_SIZES`, or -1 if no suffix occurs.
        Second value: index of a damaged shard, or -1 if no damage was found.
    """
    low, high, probe = -1, size_index + 1, min(FIRST_SIZE, size_index)
    while low + 1 < high:
        total, shard = look_up(
            table, pool.tail, LONGEST - STORE_SIZES[probe], LONGEST, pool.ranges[probe]
        )
        if total < 0:
            return -1, shard
        pool.totals[probe] = total
        if total > 0:
            low = probe
        else:
            high = probe
        probe = (low + high) // 2
    return low, -1


@kernel
def look_up(
    table: Records[ShardRow],
    tail: NDArray[np.int64],
    begin: int,
    end: int,
    ranges: Records[RankRange],
) -> tuple[int, int]:
    """Find all occurrences of tail[begin:end] in the datastore.

    Args:
        table: Shards of the datastore.
        tail: Text to match.
        begin: Start of the suffix in `tail`.
        end: End of the suffix in `tail` (exclusive).
        ranges: Output: range of the occurrences in each shard's suffix array, [shards].
    Returns:
        (number of occurrences, -1); if a shard is damaged, (DAMAGED, index of the shard).
    """
    total = 0
    for shard in range(len(table)):
        low, high = range_of(table, shard, tail, begin, end)
        if low < 0:
            return DAMAGED, shard
        ranges[shard].low, ranges[shard].high = low, high
        total += high - low
    return total, -1


@kernel
def sample(
    table: Records[ShardRow],
    pool: Pool,
    count: int,
    query: Query,
    matches: SuffixMatches,
    upper: int,
    samples: int,
) -> tuple[int, int]:
    """Sample matches of a suffix, evenly spaced by rank, and add a pointer for each.

    A pointer marks the token that follows a match. The rank of a match is its position in the
    suffix array.

    Args:
        table: Shards of the datastore.
        pool: Match pointers of the tree.
        count: Number of pointers in the pool so far.
        query: Text to match, which ends with the suffix.
        matches: Matches of the suffix.
        upper: Matches of this length or more are skipped.
        samples: Maximum number of matches to read.
    Returns:
        (new number of pointers, -1); if a shard is damaged, (DAMAGED, index of the shard).
    """
    wanted, size = min(matches.total, samples), matches.size
    damaged = _read_matches(table, matches, wanted, pool.scratch)
    if damaged >= 0:
        return DAMAGED, damaged
    longest = min(upper, LONGEST, query.end - query.begin)
    for index in range(wanted):
        position, shard = pool.scratch[index].position, pool.scratch[index].shard
        row, start = table[shard], position - size
        match, back = size, min(start, longest - size)
        if back > 0 and not text_sound(row, start - back, back):
            return DAMAGED, shard
        while (
            match - size < back
            and token_at(row, position - 1 - match) == query.ids[query.end - 1 - match]
        ):
            match += 1
        if match < upper and count < len(pool.pointers):
            count = put(pool, count, position, shard, match, pool.scratch[index].token)
    return count, -1


@kernel
def _read_matches(
    table: Records[ShardRow], matches: SuffixMatches, wanted: int, out: Records[Pointer]
) -> int:
    """Read `wanted` matches of a suffix, evenly spaced by rank.

    The iterations do not depend on each other, so slow memory reads can overlap.

    Args:
        table: Shards of the datastore.
        matches: Matches of the suffix.
        wanted: Number of matches to read.
        out: Output: position, shard and token of each match, [wanted].
    Returns:
        -1, or the index of a damaged shard.
    """
    size, ranges, total = matches
    shard, rank, rest = 0, 0, 0
    for index in range(wanted):
        while rank >= ranges[shard].high - ranges[shard].low:
            rank, shard = rank - ranges[shard].high + ranges[shard].low, shard + 1
        start = suffix(table[shard], ranges[shard].low + rank)
        if start < 0:
            return shard
        token = stored_token(table[shard], start + size)
        if token == UNREADABLE:
            return shard
        out[index].position, out[index].shard, out[index].token = start + size, shard, token
        # Over all shards, the next rank is (index + 1) * total / wanted, rounded down.
        rank, rest = (rank + total // wanted, rest + total % wanted)
        if rest >= wanted:
            rank, rest = rank + 1, rest - wanted
    return -1


@kernel
def stored_token(row: ShardRow, position: int) -> int:
    """Return the token at a position in a shard.

    The result is ENDS at the end of a document and for tokens outside the vocabulary. On a damaged
    page, it is UNREADABLE.
    """
    if position >= row.text_size:
        return ENDS
    if not text_sound(row, position, 1):
        return UNREADABLE
    token = token_at(row, position)
    return ENDS if token == row.separator or token >= row.vocab_size else token
