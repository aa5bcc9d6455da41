"""Weaker evidence than a match: the copied text, a skipped token, and places in the same relation.

Pointers added here have no match length: MATCH is SKIPPED, or minus a number of votes. Where a draft node takes their token, they
go on as matches of one token.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from paceline.datastore.compiled import kernel
from paceline.datastore.rows import DAMAGED, text_sound, token_at
from paceline.drafters.request_index import LONGEST, Text, occurrences
from paceline.drafters.sssd_evidence import MATCH, NEXT, PLACE, REQUEST, SHARD, SKIPPED, UNREADABLE, Pool, look_up, sample, stored

_SURE = 4  # tokens of a match beside which hints are not looked for
_SKIP_LINKS, _SKIP_SAMPLED = 16, 32  # places behind a skipped token: in the request, and in the datastore
_PAIR = 1  # the chain of two tokens
_ANCHOR = 4  # tokens of a match from which on a text counts as copied
_NEAR, _FAR = 48, 1 << 30  # tokens within which shorter and longer matches move the line
_REACH = 10  # tokens that are looked back for a relation
_RELATED = 3  # places in relation that are added to a node


@kernel
def follow(pool: Pool, begin: int, end: int, line: int) -> int:
    """Where the text that is being copied goes on in the request; below 0 = none is.

    Args:
        begin, end: pointers of the root. line: where it would go on if nothing had been left out or put in.
    """
    longest = 0
    for index in range(begin, end):
        if pool.pointers[index, SHARD] == REQUEST:
            longest = max(longest, pool.pointers[index, MATCH])
    anchored = longest >= _ANCHOR
    if line < 0 and not anchored:
        return line
    best, close, least = line, _FAR if anchored else _NEAR, longest if anchored else 1
    for index in range(begin, end):
        off = pool.pointers[index, PLACE] - line
        off = off if off >= 0 else -2 * off
        if pool.pointers[index, SHARD] == REQUEST and pool.pointers[index, MATCH] >= least and off < close:
            best, close = pool.pointers[index, PLACE], off
    return best


@kernel
def add_hints(
    table: NDArray[np.int64], text: Text, pool: Pool, begin: int, count: int, context: int, depth: int
) -> tuple[int, int]:
    """Add hints to a node whose pointers are [begin, count), unless one of these has a long match.

    Returns:
        rows filled now, and -1; (DAMAGED, shard).
    """
    for index in range(begin, count):
        if pool.pointers[index, MATCH] >= _SURE:
            return count, -1
    end, shard = count, -1
    if depth == 0 and context >= 3:
        end, shard = _skip_last(table, text, pool, count, context)
    if end >= 0:
        end = _relate(table, text, pool, begin, count, end, context, depth)
    return end, shard


@kernel
def _skip_last(table: NDArray[np.int64], text: Text, pool: Pool, count: int, context: int) -> tuple[int, int]:
    """Add places where the two tokens before the newest one occurred, one token further on, whatever the newest one is.

    Returns:
        rows filled now, and -1; (DAMAGED, shard).
    """
    found = occurrences(text, _PAIR, pool.tail, LONGEST - context, LONGEST - 1, LONGEST + 1, pool.found, 0, _SKIP_LINKS)
    for index in range(found):
        place = pool.found[index, 0] + 1
        if place < text.length and count < len(pool.pointers):
            pool.pointers[count, PLACE], pool.pointers[count, SHARD] = place, REQUEST
            pool.pointers[count, MATCH], pool.pointers[count, NEXT] = SKIPPED, text.ids[place]
            count += 1
    begin, ranges = count, pool.ranges[0]
    total, shard = look_up(table, pool.tail, LONGEST - 3, LONGEST - 1, ranges)
    if total > 0:
        count, shard = sample(table, pool, ranges, count, 2, 0, 2, 3, total, _SKIP_SAMPLED)
    if shard >= 0:
        return DAMAGED, shard
    for index in range(begin, count):
        shard, place, following = pool.pointers[index, SHARD], pool.pointers[index, PLACE] + 1, pool.pointers[index, NEXT]
        if following >= 0:  # the document goes on
            following = stored(table[shard], place)
        if following == UNREADABLE:
            return DAMAGED, shard
        pool.pointers[index, PLACE], pool.pointers[index, MATCH], pool.pointers[index, NEXT] = place, SKIPPED, following
    return count, -1


@kernel
def _relate(table: NDArray[np.int64], text: Text, pool: Pool, begin: int, end: int, count: int, context: int, depth: int) -> int:
    """Add places that stand to the node as what its pointers offer stands to them: behind "=7>>7", "=9>>" goes on with "9".

    Each of the pointers [begin, end) votes for the place as many tokens back as its own token occurred before it.

    Returns:
        rows filled now.
    """
    votes, reach, voted = pool.votes, min(_REACH, context + depth - 1), False
    votes[:] = 0
    for index in range(begin, end):
        match, token = pool.pointers[index, MATCH], pool.pointers[index, NEXT]
        shard, place = pool.pointers[index, SHARD], pool.pointers[index, PLACE]
        if token >= 0 and 1 <= match < place - 1:
            back = _relation(table, text, pool.tail, shard, place, token, match + 1, min(reach, place - 1), LONGEST + depth)
            votes[back] += back > 0
            voted = voted or back > 0
    for _ in range(_RELATED if voted else 0):
        best = 0
        for back in range(1, reach + 1):
            best = back if votes[back] > votes[best] else best
        if best == 0 or count == len(pool.pointers):
            break
        pool.pointers[count, PLACE], pool.pointers[count, SHARD] = text.length + depth - best, REQUEST
        pool.pointers[count, MATCH], pool.pointers[count, NEXT] = -votes[best], pool.tail[LONGEST + depth - best]
        votes[best] = 0
        count += 1
    return count


@kernel
def _relation(
    table: NDArray[np.int64],
    text: Text,
    tail: NDArray[np.int64],
    shard: int,
    place: int,
    token: int,
    first: int,
    reach: int,
    end: int,
) -> int:
    """How many tokens before `place` its `token` occurred, where tail[:end] has another one behind the same; 0 = nowhere."""
    if shard == REQUEST:
        if place <= text.length:
            for back in range(first, reach + 1):
                same = text.ids[place - back] == token and text.ids[place - back - 1] == tail[end - back - 1]
                if same and token != tail[end - back]:
                    return back
    elif text_sound(table[shard], place - reach - 1, reach + 1):
        row = table[shard]
        for back in range(first, reach + 1):
            same = token_at(row, place - back) == token and token_at(row, place - back - 1) == tail[end - back - 1]
            if same and token != tail[end - back]:
                return back
    return 0
