"""Add weak matches: copied text, a skipped token, and related tokens.

Weak matches propose tokens for a node that has no long match. In addition, `follow_copy` finds the
position in the request from which text is being copied.

A skipped token: suppose that the request is 1 2 3 4 ... 1 2 9, and that 9 never occurred before.
Earlier, "1 2" was followed by one token (3) and then by 4. The search skips that one token, which
is now 9, and proposes 4. The pointer to this 4 has the match value SKIPPED.

Related tokens: suppose that the request is 20 7 21 7 ... 20 9 21. The newest token is 21. The
earlier 21 was followed by a 7 that repeated the token two positions before it. The token two
positions before the next one is now a 9, so 9 is proposed.

    before == 20  7 21  7     7 repeats the token 2 positions earlier, which follows 20
    now    == 20  9 21  ?     the token 2 positions earlier, which follows 20, is 9: one vote for 9

The pointer to this 9 has the match value -1 for one vote, -2 for two votes, and so on. If only
weak matches offer the token of a draft node, the node inherits their pointers. Each of them then
counts as a match of one token.
"""

from __future__ import annotations

from paceline.datastore.rows import DAMAGED, Query, text_sound, token_at
from paceline.drafters.sssd.pointers import REQUEST, SKIPPED, UNREADABLE, Pointer
from paceline.drafters.sssd.pool import PointerRange, Pool, Sources, put
from paceline.drafters.sssd.request_index import occurrences
from paceline.drafters.sssd.settings import (
    COPY_MATCH,
    LONGEST,
    MAX_RELATED,
    NEAR_COPY,
    RELATION_REACH,
    SKIP_LINKS,
    SKIP_SAMPLES,
    STRONG_MATCH,
)
from paceline.drafters.sssd.store_matches import SuffixMatches, look_up, sample, stored_token
from paceline.util.compiled import kernel

_PAIR = 1  # index of 2 in NGRAM_SIZES
_ANYWHERE = 1 << 30  # a distance without limit


@kernel
def follow_copy(pool: Pool, begin: int, end: int, expected: int) -> int:
    """Return the position from which the request is copying text; negative if none.

    Args:
        pool: Match pointers of the tree: earlier positions where the same tokens occur.
        begin: Index of the first match pointer of the root.
        end: Index after the last match pointer of the root.
        expected: Position at which the copy continues if nothing was inserted or omitted.
    """
    longest = 0
    for index in range(begin, end):
        if pool.pointers[index].shard == REQUEST:
            longest = max(longest, pool.pointers[index].match)
    anchored = longest >= COPY_MATCH
    if expected < 0 and not anchored:
        return expected
    best = expected
    min_match, distance = (longest, _ANYWHERE) if anchored else (1, NEAR_COPY)
    for index in range(begin, end):
        pointer = pool.pointers[index]
        # Going back costs twice as much as skipping text.
        off = pointer.position - expected
        off = off if off >= 0 else -2 * off
        if pointer.shard == REQUEST and pointer.match >= min_match and off < distance:
            best, distance = pointer.position, off
    return best


@kernel
def add_weak_matches(
    sources: Sources, pool: Pool, begin: int, count: int, query: Query
) -> tuple[int, int]:
    """Add weak matches to a node, unless the node has a long match.

    A weak match skips the newest token, or repeats a recent token as matching text did.

    Args:
        sources: Texts that are searched.
        pool: Match pointers of the tree: earlier positions where the same tokens occur.
        begin: Index of the first match pointer of the node.
        count: Number of match pointers in the pool; the node's are those from `begin` on.
        query: Text to match.
    Returns:
        (new number of match pointers in the pool, -1), or (DAMAGED, damaged shard).
    """
    for index in range(begin, count):
        if pool.pointers[index].match >= STRONG_MATCH:
            return count, -1
    end, shard = count, -1
    if query.end == LONGEST and query.end - query.begin >= 3:
        end, shard = _skip_last(sources, pool, count, query)
    if end >= 0:
        end = _relate(sources, pool, PointerRange(begin, count), end, query)
    return end, shard


@kernel
def _skip_last(sources: Sources, pool: Pool, count: int, query: Query) -> tuple[int, int]:
    """Match the two tokens before the newest one, and skip the token after each match.

    The token after the skipped one is proposed.

    Returns:
        (new number of match pointers in the pool, -1), or (DAMAGED, damaged shard).
    """
    text, table = sources
    before = Query(query.ids, query.begin, LONGEST - 1)
    matches = occurrences(text, _PAIR, before, LONGEST + 1, pool.scratch, 0, SKIP_LINKS)
    for index in range(matches):
        position = pool.scratch[index].position + 1
        if position < text.length and count < len(pool.pointers):
            count = put(pool, count, position, REQUEST, SKIPPED, text.ids[position])
    begin, ranges = count, pool.ranges[0]
    pair = Query(query.ids, LONGEST - 3, LONGEST - 1)
    total, shard = look_up(table, pair.ids, pair.begin, pair.end, ranges)
    if total > 0:
        count, shard = sample(
            table, pool, count, pair, SuffixMatches(2, ranges, total), 3, SKIP_SAMPLES
        )
    if shard >= 0:
        return DAMAGED, shard
    for index in range(begin, count):
        pointer = pool.pointers[index]
        shard, position, following = pointer.shard, pointer.position + 1, pointer.token
        if following >= 0:  # the document continues
            following = stored_token(table[shard], position)
        if following == UNREADABLE:
            return DAMAGED, shard
        pointer.position, pointer.match, pointer.token = position, SKIPPED, following
    return count, -1


@kernel
def _relate(sources: Sources, pool: Pool, offered: PointerRange, count: int, query: Query) -> int:
    """Propose recent tokens, at distances at which earlier text repeated tokens.

    1. Each pointer in `offered` leads to a token after matching text. If that token repeats a token
       shortly before it, the distance between the two gets one vote.
    2. At most MAX_RELATED distances are selected: those with the most votes.
    3. For each selected distance d, the token d positions before the next token is proposed.

    For example, "7" followed the matching text "=", "7", ">>". This "7" repeats the token two
    positions before it, so the distance 2 gets a vote. The text now ends in "=", "9", ">>". The
    token two positions before the next one is "9", so "9" is proposed.

    Returns:
        The number of pointers in `pool` after the call.
    """
    votes, reach = pool.votes, min(RELATION_REACH, query.end - query.begin - 1)
    votes[:] = 0
    voted = False
    for index in range(offered.begin, offered.end):
        pointer = pool.pointers[index]
        if pointer.token >= 0 and 1 <= pointer.match < pointer.position - 1:
            back = _relation(sources, query, pointer, min(reach, pointer.position - 1))
            votes[back] += back > 0
            voted = voted or back > 0
    depth = query.end - LONGEST
    for _ in range(MAX_RELATED if voted else 0):
        best = 0
        for back in range(1, reach + 1):
            best = back if votes[back] > votes[best] else best
        if best == 0 or count == len(pool.pointers):
            break
        position, token = sources.text.length + depth - best, query.ids[query.end - best]
        count = put(pool, count, position, REQUEST, -votes[best], token)
        votes[best] = 0
    return count


@kernel
def _relation(sources: Sources, query: Query, pointer: Pointer, reach: int) -> int:
    """Return the distance to an earlier token that a proposed token repeats, or 0.

    `pointer` proposes the token that followed a match. The distance is longer than the match, and
    at most `reach`. At this distance, the query must have a different token after an equal token.
    """
    text, table = sources
    token, position, first = pointer.token, pointer.position, pointer.match + 1
    tail, end = query.ids, query.end
    if pointer.shard == REQUEST:
        if position <= text.length:
            for back in range(first, reach + 1):
                same = (
                    text.ids[position - back] == token
                    and text.ids[position - back - 1] == tail[end - back - 1]
                )
                if same and token != tail[end - back]:
                    return back
    elif text_sound(table[pointer.shard], position - reach - 1, reach + 1):
        row = table[pointer.shard]
        for back in range(first, reach + 1):
            same = (
                token_at(row, position - back) == token
                and token_at(row, position - back - 1) == tail[end - back - 1]
            )
            if same and token != tail[end - back]:
                return back
    return 0
