"""Find the match pointers of draft nodes in the request and in the datastore.

All nodes of a tree keep their pointers in one pool, one node after the other. The tail of the pool
holds the text to match: the newest tokens of the request, then the path to the node. With LONGEST =
32 and the request 5 1 2 7 4 1 2, at a node 7 4:

    index   0 ... 24   25  26  27  28  29  30  31   32  33
    tail    unused      5   1   2   7   4   1   2    7   4
                      <------ context = 7 ------>  < depth = 2 >

The root looks up suffixes of the context, from long to short, in the request (`point_into_request`)
and in the datastore (`point_into_store`). Any other node advances the pointers of its parent that
offer its token (`advance`). If none are left, it searches again with shorter suffixes of tail[32 -
context : 32 + depth].
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paceline.datastore.rows import DAMAGED, ShardRow, suffix, text_sound, token_at
from paceline.datastore.search import range_of
from paceline.drafters.sssd.pointers import ENDS, POINTER, RANK_RANGE, REQUEST, Pointer, RankRange
from paceline.drafters.sssd.request_index import LONGEST, NGRAM_SIZES, RequestText, occurrences
from paceline.util.compiled import Records, compiled, kernel

# suffix lengths that are looked up in the datastore
STORE_SIZES = (
    1,
    2,
    3,
    4,
    6,
    8,
    12,
    16,
    24,
    32,
)
_FIRST_SIZE = 3  # index of the one that is looked up first
_ROOT_LINKS, _NODE_LINKS = 64, 16  # chain links followed at the root, and at a node
_ENOUGH_REQUEST = 48  # pointers into the request, of which shorter matches are not looked for
UNREADABLE = -2  # as a token: the page is damaged
_UNKNOWN = -1  # a suffix that was not looked up


class Pool(NamedTuple):
    """Hold the pointers of all nodes of one tree, with scratch arrays for the search.

    Attributes:
        pointers: [room].
        found: [max_matches] scratch of one look-up.
        ranges: [len(STORE_SIZES), shards] of RANK_RANGE, for the suffixes of one node.
        totals: [len(STORE_SIZES)] matches per suffix in all shards, or _UNKNOWN.
        tail: [LONGEST + depth] last LONGEST tokens of the request, then the path to a node.
        votes: [LONGEST] scratch.
    """

    pointers: Records[Pointer]
    found: Records[Pointer]
    ranges: Any
    totals: NDArray[np.int64]
    tail: NDArray[np.int64]
    votes: NDArray[np.int64]


@compiled
def new_pool(room: int, most: int, depth: int, shards: int) -> Pool:
    """Return scratch arrays for trees of up to `room` pointers and `depth` levels."""
    return Pool(
        np.empty(room, dtype=POINTER),
        np.empty(most, dtype=POINTER),
        np.empty((len(STORE_SIZES), shards), dtype=RANK_RANGE),
        np.empty(len(STORE_SIZES), dtype=np.int64),
        np.empty(LONGEST + depth, dtype=np.int64),
        np.empty(LONGEST, dtype=np.int64),
    )


@kernel
def put(pool: Pool, count: int, place: int, shard: int, match: int, token: int) -> int:
    """Append a pointer, for which there must be room; return the new count."""
    pointer = pool.pointers[count]
    pointer.place, pointer.shard, pointer.match, pointer.token = place, shard, match, token
    return count + 1


@kernel
def copy_newest(text: RequestText, pool: Pool) -> int:
    """Copy the newest tokens of the request into the tail; return their number."""
    context = min(text.length, LONGEST)
    for index in range(context):
        pool.tail[LONGEST - context + index] = text.ids[text.length - context + index]
    return context


@kernel
def point_into_request(
    text: RequestText, pool: Pool, count: int, context: int, depth: int, below: int
) -> tuple[int, int]:
    """Add pointers into the request, longest matches first.

    Args:
        text: The request.
        pool: Pointers of the tree.
        count: Number of pointers so far.
        context: Tokens of the tail before LONGEST.
        depth: Tokens of the tail from LONGEST on.
        below: Match length from which on pointers are left out.
    Returns:
        The number of pointers, and the match length down to which the search was complete.
    """
    first, begin, end = count, LONGEST - context, LONGEST + depth
    links = _ROOT_LINKS if depth == 0 else _NODE_LINKS
    lowest = below
    for size_index in range(len(NGRAM_SIZES) - 1, -1, -1):
        if NGRAM_SIZES[size_index] >= below:
            continue
        if count - first >= _ENOUGH_REQUEST:
            break
        found = occurrences(text, size_index, pool.tail, begin, end, lowest, pool.found, 0, links)
        for index in range(min(found, len(pool.pointers) - count)):
            found_at = pool.found[index].place
            count = put(pool, count, found_at, REQUEST, pool.found[index].match, text.ids[found_at])
        lowest = NGRAM_SIZES[size_index]
    return count, lowest


@kernel
def point_into_store(
    table: Records[ShardRow],
    pool: Pool,
    count: int,
    context: int,
    depth: int,
    below: int,
    enough: int,
    most: int,
) -> tuple[int, int]:
    """Add pointers into the datastore, longest matches first.

    Args:
        table: Shards of the datastore.
        pool: Pointers of the tree.
        count: Number of pointers so far.
        context: Tokens of the tail before LONGEST.
        depth: Tokens of the tail from LONGEST on.
        below: Match length from which on pointers are left out.
        enough: Number of added pointers from which on no shorter suffix is looked up.
        most: Maximum number of pointers sampled per suffix.
    Returns:
        The number of pointers and the match length down to which was searched; or DAMAGED and the
        index of the shard.
    """
    first, upper = count, below
    size_index = len(STORE_SIZES) - 1
    while size_index >= 0 and (
        STORE_SIZES[size_index] >= below or STORE_SIZES[size_index] > context + depth
    ):
        size_index -= 1
    pool.totals[:] = _UNKNOWN
    if depth == 0:
        size_index, shard = _longest_that_occurs(table, pool, size_index)
        if shard >= 0:
            return DAMAGED, shard
    while size_index >= 0 and count - first < enough:
        size, ranges, total, shard = (
            STORE_SIZES[size_index],
            pool.ranges[size_index],
            pool.totals[size_index],
            -1,
        )
        if total == _UNKNOWN:
            total, shard = look_up(
                table, pool.tail, LONGEST + depth - size, LONGEST + depth, ranges
            )
        if total > 0:
            count, shard = sample(
                table, pool, ranges, count, context, depth, size, upper, total, most
            )
        if shard >= 0:
            return DAMAGED, shard
        upper = size
        size_index -= 1
    return count, upper


@kernel
def _longest_that_occurs(table: Records[ShardRow], pool: Pool, size_index: int) -> tuple[int, int]:
    """Bisect for the longest suffix that occurs; return its index and damage."""
    low, high, probe = -1, size_index + 1, min(_FIRST_SIZE, size_index)
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
    """Count occurrences of tail[begin:end]: (count, -1) or (DAMAGED, shard)."""
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
    ranges: Records[RankRange],
    count: int,
    context: int,
    depth: int,
    size: int,
    upper: int,
    total: int,
    most: int,
) -> tuple[int, int]:
    """Add up to `most` pointers of `ranges` at regular intervals.

    Matches of `upper` tokens and more are left out.

    Returns:
        The number of pointers and -1; or (DAMAGED, shard).
    """
    wanted = min(total, most)
    damaged = _positions(table, ranges, size, total, wanted, pool.found)
    if damaged >= 0:
        return DAMAGED, damaged
    longest = min(upper, LONGEST, context + depth)
    for index in range(wanted):
        place, shard = pool.found[index].place, pool.found[index].shard
        row, start = table[shard], place - size
        match, back = size, min(start, longest - size)
        if back > 0 and not text_sound(row, start - back, back):
            return DAMAGED, shard
        while (
            match - size < back
            and token_at(row, place - 1 - match) == pool.tail[LONGEST + depth - 1 - match]
        ):
            match += 1
        if match < upper and count < len(pool.pointers):
            count = put(pool, count, place, shard, match, pool.found[index].token)
    return count, -1


@kernel
def _positions(
    table: Records[ShardRow],
    ranges: Records[RankRange],
    size: int,
    total: int,
    wanted: int,
    found: Records[Pointer],
) -> int:
    """Fill `found` with `wanted` of `total` matches of `size` tokens.

    No iteration depends on the previous one, so that reads of distant memory overlap.

    Returns:
        -1, or the index of a damaged shard.
    """
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
        found[index].place, found[index].shard, found[index].token = start + size, shard, token
        # Together they are the index times total, divided by wanted and rounded down.
        rank, rest = (rank + total // wanted, rest + total % wanted)
        if rest >= wanted:
            rank, rest = rank + 1, rest - wanted
    return -1


@kernel
def stored_token(row: ShardRow, place: int) -> int:
    """Return a token of a shard, ENDS at the end of a document, or UNREADABLE."""
    if place >= row.text_size:
        return ENDS
    if not text_sound(row, place, 1):
        return UNREADABLE
    token = token_at(row, place)
    return ENDS if token == row.separator or token >= row.vocab_size else token


@kernel
def advance(
    table: Records[ShardRow],
    text: RequestText,
    pool: Pool,
    begin: int,
    end: int,
    token: int,
    count: int,
    most: int,
    depth: int,
) -> tuple[int, int]:
    """Add the first `most` pointers that offer `token`, one token further.

    Returns:
        The number of pointers, and how many of the added ones lead into the request; or (DAMAGED,
        shard).
    """
    room, inside = min(len(pool.pointers), count + most), 0
    for index in range(begin, end):
        pointer = pool.pointers[index]
        if pointer.token != token or count >= room:
            continue
        place, shard = pointer.place + 1, pointer.shard
        if shard != REQUEST:
            following = stored_token(table[shard], place)
            if following == UNREADABLE:
                return DAMAGED, shard
        else:
            inside += 1
            following = ENDS
            if place < text.length:
                following = text.ids[place]
            elif place < text.length + depth:
                following = pool.tail[LONGEST + place - text.length]
        count = put(pool, count, place, shard, min(max(0, pointer.match) + 1, LONGEST), following)
    return count, inside
