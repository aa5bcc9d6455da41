"""Add weak matches: copied text, a skipped token, positions in relation.

A skipped token: the request is 1 2 3 4 ... 1 2 9. Nothing followed "9" before, but after "1 2" came
some token and then 4. So 4 may follow now, whatever the newest token is. Its pointer has match
SKIPPED.

The same relation: the request is 20 7 21 7 ... 20 9 21, and the newest token 21 was followed by 7:

    before    20  7 21  7     the offered token 7 also occurred 2 positions earlier, after 20
    now       20  9 21  ?     2 positions before the node, after 20, is 9: a vote for 9

Its pointer has match -1 for one vote, -2 for two, and so on. If a draft node takes a token that
only weak matches offer, their pointers continue as matches of one token.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from paceline.datastore.rows import DAMAGED, ShardRow, text_sound, token_at
from paceline.drafters.sssd.evidence import UNREADABLE, Pool, look_up, put, sample, stored_token
from paceline.drafters.sssd.pointers import REQUEST, SKIPPED
from paceline.drafters.sssd.request_index import LONGEST, RequestText, occurrences
from paceline.util.compiled import Records, kernel

_SURE = 4  # match length from which on no weak matches are added
# places behind a skipped token: in the request, and in the datastore
_SKIP_LINKS, _SKIP_SAMPLED = (16, 32)
_PAIR = 1  # index of 2 in NGRAM_SIZES
_ANCHOR = 4  # tokens of a match from which on a text counts as copied
# tokens within which shorter and longer matches move the place that is copied
_NEAR, _FAR = (48, 1 << 30)
_REACH = 10  # tokens that are looked back for a relation
_RELATED = 3  # places in relation that are added to a node


@kernel
def follow_copy(pool: Pool, begin: int, end: int, expected: int) -> int:
    """Return the request position where the copied text continues; below 0 for none.

    Args:
        pool: Pointers of the tree.
        begin: First pointer of the root.
        end: End of the pointers of the root.
        expected: Position if nothing was inserted or left out.
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
    """Add weak matches to a node, unless one of its pointers has a long match.

    Returns:
        The number of pointers and -1; or (DAMAGED, shard).
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
    """Add the positions one token after matches of the two tokens before the newest.

    Returns:
        The number of pointers and -1; or (DAMAGED, shard).
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
        if following >= 0:  # the document continues
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
    """Add positions in the same relation to the node as offered tokens.

    An example: "9" is offered after "=9>>", as "7" followed "=7>>". Each of the pointers [begin,
    end) votes for the distance at which its own token occurred before.

    Returns:
        The number of pointers.
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
    """Return the distance at which `token` occurred in the same relation, or 0."""
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
