"""Weaker evidence than a match: the copied text, a skipped token, and places in the same relation.

A skipped token. The request is 1 2 3 4 ... 1 2 9: nothing followed "9" before, but behind "1 2"
came some token and then 4, so 4 may come now whatever the newest token is. Its pointer has match
SKIPPED.

The same relation. The request is 20 7 21 7 ... 20 9 21, and the newest token 21 was followed by 7:

    before    20  7 21  7     the token offered, 7, also stood 2 places before its place, behind 20
    now       20  9 21  ?     2 places before the node, behind 20, stands 9: a vote for 9

Its pointer has match -1 for one vote, -2 for two, and so on. Where a draft node takes a token that
only hints offer, their pointers go on as matches of one token.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from paceline.datastore.rows import DAMAGED, ShardRow, text_sound, token_at
from paceline.drafters.sssd.evidence import UNREADABLE, Pool, look_up, put, sample, stored_token
from paceline.drafters.sssd.pointers import REQUEST, SKIPPED
from paceline.drafters.sssd.request_index import LONGEST, RequestText, occurrences
from paceline.util.compiled import Records, kernel

_SURE = 4  # tokens of a match beside which hints are not looked for
_SKIP_LINKS, _SKIP_SAMPLED = (
    16,
    32,
)  # places behind a skipped token: in the request, and in the datastore
_PAIR = 1  # index of 2 in NGRAM_SIZES
_ANCHOR = 4  # tokens of a match from which on a text counts as copied
_NEAR, _FAR = (
    48,
    1 << 30,
)  # tokens within which shorter and longer matches move the place that is copied
_REACH = 10  # tokens that are looked back for a relation
_RELATED = 3  # places in relation that are added to a node


@kernel
def follow_copy(pool: Pool, begin: int, end: int, expected: int) -> int:
    """Return where the text that is being copied goes on in the request; below 0 = none is.

    Args:
        begin, end: pointers of the root. expected: where it would go on if nothing had been left
            out or put in.
    """
    longest = 0
    for index in range(begin, end):
        if pool.pointers[index].shard == REQUEST:
            longest = max(longest, pool.pointers[index].match)
    anchored = longest >= _ANCHOR
    if expected < 0 and not anchored:
        return expected
    best, close, least = expected, _FAR if anchored else _NEAR, longest if anchored else 1
    for index in range(begin, end):
        pointer = pool.pointers[index]
        off = pointer.place - expected
        off = off if off >= 0 else -2 * off
        if pointer.shard == REQUEST and pointer.match >= least and off < close:
            best, close = pointer.place, off
    return best


@kernel
def add_hints(
    table: Records[ShardRow],
    text: RequestText,
    pool: Pool,
    begin: int,
    count: int,
    context: int,
    depth: int,
) -> tuple[int, int]:
    """Add hints to a node whose pointers are [begin, count), unless one of these has a long match.

    Returns:
        how many pointers there are now, and -1; (DAMAGED, shard).
    """
    for index in range(begin, count):
        if pool.pointers[index].match >= _SURE:
            return count, -1
    end, shard = count, -1
    if depth == 0 and context >= 3:
        end, shard = _skip_last(table, text, pool, count, context)
    if end >= 0:
        end = _relate(table, text, pool, begin, count, end, context, depth)
    return end, shard


@kernel
def _skip_last(
    table: Records[ShardRow], text: RequestText, pool: Pool, count: int, context: int
) -> tuple[int, int]:
    """Add places where the two tokens before the newest one occurred, one token further on,
    whatever the newest one is.

    Returns:
        how many pointers there are now, and -1; (DAMAGED, shard).
    """
    found = occurrences(
        text,
        _PAIR,
        pool.tail,
        LONGEST - context,
        LONGEST - 1,
        LONGEST + 1,
        pool.found,
        0,
        _SKIP_LINKS,
    )
    for index in range(found):
        place = pool.found[index].place + 1
        if place < text.length and count < len(pool.pointers):
            count = put(pool, count, place, REQUEST, SKIPPED, text.ids[place])
    begin, ranges = count, pool.ranges[0]
    total, shard = look_up(table, pool.tail, LONGEST - 3, LONGEST - 1, ranges)
    if total > 0:
        count, shard = sample(table, pool, ranges, count, 2, 0, 2, 3, total, _SKIP_SAMPLED)
    if shard >= 0:
        return DAMAGED, shard
    for index in range(begin, count):
        pointer = pool.pointers[index]
        shard, place, following = pointer.shard, pointer.place + 1, pointer.token
        if following >= 0:  # the document goes on
            following = stored_token(table[shard], place)
        if following == UNREADABLE:
            return DAMAGED, shard
        pointer.place, pointer.match, pointer.token = place, SKIPPED, following
    return count, -1


@kernel
def _relate(
    table: Records[ShardRow],
    text: RequestText,
    pool: Pool,
    begin: int,
    end: int,
    count: int,
    context: int,
    depth: int,
) -> int:
    """Add places that stand to the node as what its pointers offer stands to them: "9" is offered
    behind "=9>>", after "=7>>7".

    Each of the pointers [begin, end) votes for the place as many tokens back as its own token
    occurred before it.

    Returns:
        how many pointers there are now.
    """
    votes, reach, voted = pool.votes, min(_REACH, context + depth - 1), False
    votes[:] = 0
    for index in range(begin, end):
        pointer = pool.pointers[index]
        match, token, shard, place = pointer.match, pointer.token, pointer.shard, pointer.place
        if token >= 0 and 1 <= match < place - 1:
            back = _relation(
                table,
                text,
                pool.tail,
                shard,
                place,
                token,
                match + 1,
                min(reach, place - 1),
                LONGEST + depth,
            )
            votes[back] += back > 0
            voted = voted or back > 0
    for _ in range(_RELATED if voted else 0):
        best = 0
        for back in range(1, reach + 1):
            best = back if votes[back] > votes[best] else best
        if best == 0 or count == len(pool.pointers):
            break
        count = put(
            pool,
            count,
            text.length + depth - best,
            REQUEST,
            -votes[best],
            pool.tail[LONGEST + depth - best],
        )
        votes[best] = 0
    return count


@kernel
def _relation(
    table: Records[ShardRow],
    text: RequestText,
    tail: NDArray[np.int64],
    shard: int,
    place: int,
    token: int,
    first: int,
    reach: int,
    end: int,
) -> int:
    """Find how many tokens before `place` its `token` occurred, where tail[:end] has another one
    behind the same; 0 = nowhere.
    """
    if shard == REQUEST:
        if place <= text.length:
            for back in range(first, reach + 1):
                same = (
                    text.ids[place - back] == token
                    and text.ids[place - back - 1] == tail[end - back - 1]
                )
                if same and token != tail[end - back]:
                    return back
    elif text_sound(table[shard], place - reach - 1, reach + 1):
        row = table[shard]
        for back in range(first, reach + 1):
            same = (
                token_at(row, place - back) == token
                and token_at(row, place - back - 1) == tail[end - back - 1]
            )
            if same and token != tail[end - back]:
                return back
    return 0
