"""Match pointers: where the tokens before a draft node occurred in the request and in the datastore, and what follows there.

A pointer is a row (PLACE, SHARD, MATCH, NEXT): the place of the token that follows, the shard it is in (`REQUEST` = the request
itself), how many tokens up to the node agree with what stands before that place (below 0: `sssd_hints`), and that token (-1 = the
text ends there).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from paceline.datastore.compiled import compiled, kernel
from paceline.datastore.rows import DAMAGED, SEPARATOR, TOKENS, VOCAB, suffix, text_sound, token_at
from paceline.datastore.search import range_of
from paceline.drafters.request_index import LONGEST, SIZES, Text, occurrences

PLACE, SHARD, MATCH, NEXT = range(4)
FIELDS = 4
REQUEST = -1
SKIPPED = -(1 << 20)  # as MATCH: agrees up to the token before the last
LEVELS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)  # suffix lengths that are looked up in the datastore
_FIRST_LEVEL = 3  # looked up first
_ROOT_LINKS, _NODE_LINKS = 64, 16  # chain links followed at the root, and at a node
_ENOUGH_REQUEST = 48  # pointers into the request, of which shorter matches are not looked for
_ENDS, UNREADABLE = -1, -2  # no token follows; it cannot be read
_UNKNOWN = -1  # a suffix that was not looked up


class Pool(NamedTuple):
    """Pointers of all nodes of one tree, and what searching for them needs.

    Attributes:
        pointers: [room, FIELDS]. found: [most, 3] scratch of one look-up.
        ranges: [len(LEVELS), shards, 2] of the suffixes of one node; totals: [len(LEVELS)] their suffixes, or _UNKNOWN.
        tail: [LONGEST + depth] the last LONGEST tokens of the request, at its end if there are fewer, then the path to a node.
        votes: [LONGEST] scratch.
    """

    pointers: NDArray[np.int64]
    found: NDArray[np.int64]
    ranges: NDArray[np.int64]
    totals: NDArray[np.int64]
    tail: NDArray[np.int64]
    votes: NDArray[np.int64]


@compiled
def new_pool(room: int, most: int, depth: int, shards: int) -> Pool:
    """Scratch for trees of up to `room` pointers, `most` of one look-up, and `depth` levels."""
    return Pool(
        np.empty((room, FIELDS), dtype=np.int64),
        np.empty((most, 3), dtype=np.int64),
        np.empty((len(LEVELS), shards, 2), dtype=np.int64),
        np.empty(len(LEVELS), dtype=np.int64),
        np.empty(LONGEST + depth, dtype=np.int64),
        np.empty(LONGEST, dtype=np.int64),
    )


@kernel
def show_newest(text: Text, pool: Pool) -> int:
    """Put the newest tokens of the request into the tail; how many there are, LONGEST at most."""
    context = min(text.length, LONGEST)
    for index in range(context):
        pool.tail[LONGEST - context + index] = text.ids[text.length - context + index]
    return context


@kernel
def highest(values: NDArray[np.float64], count: int) -> int:
    """Where the highest of the first `count` values is, the first one on ties."""
    best = 0
    for index in range(1, count):
        if values[index] > values[best]:
            best = index
    return best


@kernel
def from_request(text: Text, pool: Pool, count: int, context: int, depth: int, below: int) -> tuple[int, int]:
    """Add pointers into the request whose match is shorter than `below`, the longest first.

    Args:
        count: rows of the pool that are filled. context, depth: tokens of the tail before and behind LONGEST.
    Returns:
        rows filled now, and the match length down to which everything (recent) was found.
    """
    first, begin, end = count, LONGEST - context, LONGEST + depth
    links = _ROOT_LINKS if depth == 0 else _NODE_LINKS
    lowest = below
    for kind in range(len(SIZES) - 1, -1, -1):
        if SIZES[kind] >= below:
            continue
        if count - first >= _ENOUGH_REQUEST:
            break
        found = occurrences(text, kind, pool.tail, begin, end, lowest, pool.found, 0, links)
        for index in range(min(found, len(pool.pointers) - count)):
            pool.pointers[count, PLACE], pool.pointers[count, MATCH] = pool.found[index, 0], pool.found[index, 1]
            pool.pointers[count, SHARD], pool.pointers[count, NEXT] = REQUEST, text.ids[pool.found[index, 0]]
            count += 1
        lowest = SIZES[kind]
    return count, lowest


@kernel
def from_store(
    table: NDArray[np.int64], pool: Pool, count: int, context: int, depth: int, below: int, enough: int, most: int
) -> tuple[int, int]:
    """Add pointers into the datastore whose match is shorter than `below`: from the longest suffix down to shorter ones.

    Args:
        enough: no shorter suffix is looked up once this many were added. most: pointers sampled for each suffix.
    Returns:
        rows filled now (or DAMAGED), and the match length down to which was searched (then: the index of the shard).
    """
    first, upper = count, below
    level = len(LEVELS) - 1
    while level >= 0 and (LEVELS[level] >= below or LEVELS[level] > context + depth):
        level -= 1
    pool.totals[:] = _UNKNOWN
    if depth == 0:
        level, shard = _highest(table, pool, level)
        if shard >= 0:
            return DAMAGED, shard
    while level >= 0 and count - first < enough:
        ranges, total, shard = pool.ranges[level], pool.totals[level], -1
        if total == _UNKNOWN:
            total, shard = look_up(table, pool.tail, LONGEST + depth - LEVELS[level], LONGEST + depth, ranges)
        if total > 0:
            count, shard = sample(table, pool, ranges, count, context, depth, LEVELS[level], upper, total, most)
        if shard >= 0:
            return DAMAGED, shard
        upper = LEVELS[level]
        level -= 1
    return count, upper


@kernel
def _highest(table: NDArray[np.int64], pool: Pool, level: int) -> tuple[int, int]:
    """The longest of the LEVELS up to `level` that occurs, -1 if none; and -1, or the index of a damaged shard."""
    low, high, probe = -1, level + 1, min(_FIRST_LEVEL, level)
    while low + 1 < high:
        total, shard = look_up(table, pool.tail, LONGEST - LEVELS[probe], LONGEST, pool.ranges[probe])
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
    table: NDArray[np.int64], tail: NDArray[np.int64], begin: int, end: int, ranges: NDArray[np.int64]
) -> tuple[int, int]:
    """How often tail[begin:end] occurs, and -1; (DAMAGED, shard). ranges: [shards, 2] filled."""
    total = 0
    for shard in range(len(table)):
        low, high = range_of(table, shard, tail, begin, end)
        if low < 0:
            return DAMAGED, shard
        ranges[shard, 0], ranges[shard, 1] = low, high
        total += high - low
    return total, -1


@kernel
def sample(
    table: NDArray[np.int64],
    pool: Pool,
    ranges: NDArray[np.int64],
    count: int,
    context: int,
    depth: int,
    size: int,
    upper: int,
    total: int,
    most: int,
) -> tuple[int, int]:
    """Add up to `most` pointers of `ranges` at regular intervals, matches of `upper` tokens and more left out.

    Returns:
        rows filled now, and -1; (DAMAGED, shard).
    """
    wanted = min(total, most)
    damaged = _positions(table, ranges, size, total, wanted, pool.found)
    if damaged >= 0:
        return DAMAGED, damaged
    longest = min(upper, LONGEST, context + depth)
    for index in range(wanted):
        place, shard = pool.found[index, 0], pool.found[index, 1]
        row, start = table[shard], place - size
        match, back = size, min(start, longest - size)
        if back > 0 and not text_sound(row, start - back, back):
            return DAMAGED, shard
        while match - size < back and token_at(row, place - 1 - match) == pool.tail[LONGEST + depth - 1 - match]:
            match += 1
        if match < upper and count < len(pool.pointers):
            pool.pointers[count, PLACE], pool.pointers[count, SHARD] = place, shard
            pool.pointers[count, MATCH], pool.pointers[count, NEXT] = match, pool.found[index, 2]
            count += 1
    return count, -1


@kernel
def _positions(
    table: NDArray[np.int64], ranges: NDArray[np.int64], size: int, total: int, wanted: int, found: NDArray[np.int64]
) -> int:
    """Fill `found` with `wanted` of `total` matches of `size` tokens: the place behind, the shard, the token there.

    No iteration waits for the one before it, so that reads of distant memory overlap.

    Returns:
        -1, or the index of a damaged shard.
    """
    shard, rank, rest = 0, 0, 0
    for index in range(wanted):
        while rank >= ranges[shard, 1] - ranges[shard, 0]:
            rank, shard = rank - ranges[shard, 1] + ranges[shard, 0], shard + 1
        start = suffix(table[shard], ranges[shard, 0] + rank)
        if start < 0:
            return shard
        token = stored(table[shard], start + size)
        if token == UNREADABLE:
            return shard
        found[index, 0], found[index, 1], found[index, 2] = start + size, shard, token
        rank, rest = rank + total // wanted, rest + total % wanted  # together: index * total // wanted
        if rest >= wanted:
            rank, rest = rank + 1, rest - wanted
    return -1


@kernel
def stored(row: NDArray[np.int64], place: int) -> int:
    """The token at a place of a shard, _ENDS where the document ends, or UNREADABLE."""
    if place >= row[TOKENS]:
        return _ENDS
    if not text_sound(row, place, 1):
        return UNREADABLE
    token = token_at(row, place)
    return _ENDS if token == row[SEPARATOR] or token >= row[VOCAB] else token


@kernel
def carry(
    table: NDArray[np.int64], text: Text, pool: Pool, begin: int, end: int, token: int, count: int, most: int, depth: int
) -> tuple[int, int]:
    """Add the first `most` pointers of [begin, end) that go on with `token`, one token further.

    Args:
        depth: tokens of the tail behind LONGEST, `token` the last; behind the end of the request, they are what follows.
    Returns:
        rows filled now, and how many of the added lead into the request; (DAMAGED, shard).
    """
    room, inside = min(len(pool.pointers), count + most), 0
    for index in range(begin, end):
        if pool.pointers[index, NEXT] != token or count >= room:
            continue
        place, shard = pool.pointers[index, PLACE] + 1, pool.pointers[index, SHARD]
        if shard != REQUEST:
            following = stored(table[shard], place)
            if following == UNREADABLE:
                return DAMAGED, shard
        else:
            inside += 1
            following = _ENDS
            if place < text.length:
                following = text.ids[place]
            elif place < text.length + depth:
                following = pool.tail[LONGEST + place - text.length]
        pool.pointers[count, PLACE], pool.pointers[count, SHARD], pool.pointers[count, NEXT] = place, shard, following
        pool.pointers[count, MATCH] = min(max(0, pool.pointers[index, MATCH]) + 1, LONGEST)
        count += 1
    return count, inside
