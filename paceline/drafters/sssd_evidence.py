"""Match pointers: where the tokens before a draft node occurred in the request and in the datastore, and what follows there.

A pointer is a row (PLACE, SHARD, MATCH, NEXT): the place of the token that follows, the shard it is in (`REQUEST` = the request
itself), how many tokens up to the node agree with what stands before that place, and that token (-1 = the text ends there).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from paceline.datastore.compiled import compiled
from paceline.datastore.rows import DAMAGED, SEPARATOR, TOKENS, VOCAB, suffix, text_sound, token_at
from paceline.datastore.search import range_of
from paceline.drafters.request_index import LONGEST, SIZES, Text, occurrences

PLACE, SHARD, MATCH, NEXT = range(4)
FIELDS = 4
REQUEST = -1
LEVELS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)  # suffix lengths that are looked up in the datastore
_ROOT_LINKS, _NODE_LINKS = 64, 16  # chain links followed at the root, and at a node
_ENOUGH_REQUEST = 48  # pointers into the request, of which shorter matches are not looked for
_ROOM = 64  # rows of pointers found in one look-up


class Pool(NamedTuple):
    """Pointers of all nodes of one tree, and what searching for them needs.

    Attributes:
        pointers: [room, FIELDS]. found: [_ROOM, 2] scratch. ranges: [shards, 2] scratch.
        tail: [LONGEST + depth] the last LONGEST tokens of the request, at its end if there are fewer, then the path to a node.
    """

    pointers: NDArray[np.int64]
    found: NDArray[np.int64]
    ranges: NDArray[np.int64]
    tail: NDArray[np.int64]


@compiled
def new_pool(room: int, depth: int, shards: int) -> Pool:
    """Scratch for trees of up to `room` pointers and `depth` levels."""
    return Pool(
        np.empty((room, FIELDS), dtype=np.int64),
        np.empty((_ROOM, 2), dtype=np.int64),
        np.empty((shards, 2), dtype=np.int64),
        np.empty(LONGEST + depth, dtype=np.int64),
    )


@compiled
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
            pool.pointers[count, SHARD] = REQUEST
            count += 1
        lowest = SIZES[kind]
    return count, lowest


@compiled
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
    if depth == 0:
        level, shard = _highest(table, pool, context, level)
        if shard >= 0:
            return DAMAGED, shard
    while level >= 0 and count - first < enough:
        total, shard = look_up(table, pool, LONGEST + depth - LEVELS[level], LONGEST + depth)
        if total < 0:
            return DAMAGED, shard
        if total > 0:
            count, shard = sample(table, pool, count, context, depth, LEVELS[level], upper, total, most)
            if count < 0:
                return DAMAGED, shard
        upper = LEVELS[level]
        level -= 1
    return count, upper


@compiled
def _highest(table: NDArray[np.int64], pool: Pool, context: int, level: int) -> tuple[int, int]:
    """The longest of the LEVELS up to `level` that occurs, -1 if none; and -1, or the index of a damaged shard."""
    low, high, probe = -1, level + 1, min(3, level)
    while low + 1 < high:
        total, shard = look_up(table, pool, LONGEST - LEVELS[probe], LONGEST)
        if total < 0:
            return -1, shard
        if total > 0:
            low = probe
        else:
            high = probe
        probe = (low + high) // 2
    return low, -1


@compiled
def look_up(table: NDArray[np.int64], pool: Pool, begin: int, end: int) -> tuple[int, int]:
    """How often tail[begin:end] occurs, ranges left in the pool; (DAMAGED, shard)."""
    total = 0
    for shard in range(len(table)):
        low, high = range_of(table, shard, pool.tail, begin, end)
        if low < 0:
            return DAMAGED, shard
        pool.ranges[shard, 0], pool.ranges[shard, 1] = low, high
        total += high - low
    return total, -1


@compiled
def sample(
    table: NDArray[np.int64], pool: Pool, count: int, context: int, depth: int, size: int, upper: int, total: int, most: int
) -> tuple[int, int]:
    """Add up to `most` pointers of the ranges in the pool at regular intervals, matches of `upper` tokens and more left out."""
    wanted = min(total, most)
    shard, before = 0, 0
    for index in range(wanted):
        rank = index * total // wanted - before
        while rank >= pool.ranges[shard, 1] - pool.ranges[shard, 0]:
            span = pool.ranges[shard, 1] - pool.ranges[shard, 0]
            before, rank, shard = before + span, rank - span, shard + 1
        row = table[shard]
        start = suffix(row, pool.ranges[shard, 0] + rank)
        if start < 0:
            return DAMAGED, shard
        match, longest = size, min(upper, LONGEST, context + depth)
        back = min(start, longest - size)
        if back > 0 and not text_sound(row, start - back, back):
            return DAMAGED, shard
        while match - size < back and token_at(row, start - 1 - (match - size)) == pool.tail[LONGEST + depth - 1 - match]:
            match += 1
        if match < upper and count < len(pool.pointers):
            pool.pointers[count, PLACE], pool.pointers[count, SHARD] = start + size, shard
            pool.pointers[count, MATCH] = match
            count += 1
    return count, -1


@compiled
def carry(pool: Pool, begin: int, end: int, token: int, count: int, most: int) -> int:
    """Add the first `most` pointers of [begin, end) that go on with `token`, one token further; rows filled now."""
    room = min(len(pool.pointers), count + most)
    for index in range(begin, end):
        if pool.pointers[index, NEXT] == token and count < room:
            pool.pointers[count, PLACE] = pool.pointers[index, PLACE] + 1
            pool.pointers[count, SHARD] = pool.pointers[index, SHARD]
            pool.pointers[count, MATCH] = min(pool.pointers[index, MATCH] + 1, LONGEST)
            count += 1
    return count


@compiled
def look_ahead(table: NDArray[np.int64], text: Text, pool: Pool, begin: int, end: int, depth: int) -> int:
    """Fill NEXT of the pointers [begin, end); behind the end of the request the path itself is read.

    Returns:
        -1, or the index of a damaged shard.
    """
    for index in range(begin, end):
        place, shard = pool.pointers[index, PLACE], pool.pointers[index, SHARD]
        token = np.int64(-1)
        if shard == REQUEST:
            if place < text.length:
                token = text.ids[place]
            elif place < text.length + depth:
                token = pool.tail[LONGEST + place - text.length]
        elif place < table[shard, TOKENS]:
            row = table[shard]
            if not text_sound(row, place, 1):
                return int(shard)
            token = np.int64(token_at(row, place))
            if token == row[SEPARATOR] or token >= row[VOCAB]:
                token = np.int64(-1)
        pool.pointers[index, NEXT] = token
    return -1
