"""Propose tokens for draft nodes that have no long match in earlier text.

`add_weak_matches` gives such a node pointers of two kinds, called weak matches. In the examples,
"?" is the next token.

The first kind skips the newest token. Only the root gets weak matches of this kind:

                     =============
    earlier text      1   2   3   4     "1 2" matches; the next token, 3, is skipped
    newest tokens     1   2   9   ?     "1 2" matches; the newest token, 9, is skipped
                     =============

After the skipped 3, the earlier text continues with 4, so 4 is proposed. The pointer to this 4 has
the match value SKIPPED.

The second kind repeats a token at the same distance as in earlier text:

                     =============
    earlier text     20   7  21   7     the last 7 repeats the token 2 positions before it
    newest tokens    20   9  21   ?     the token 2 positions before "?" is 9
                     =============

The earlier text thus votes for the distance 2, and 9 is proposed. The pointer to this 9 has the
match value -1 after one vote, -2 after two votes, and so on.

A child node inherits the pointers that lead to its token, including those of weak matches. An
inherited weak match counts as a match of one token.

In addition, `follow_copy` finds the position in the request from which text is being copied.
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

_PAIR = 1  # index of the n-gram size 2 in NGRAM_SIZES
_ANYWHERE = 1 << 30  # larger than any distance


@kernel
def follow_copy(pool: Pool, begin: int, end: int, expected: int) -> int:
    """Return the position from which the request is copying text; negative if none.

    For example, if the newest tokens repeat the tokens at positions 10 to 14, the result is 15,
    because the copy continues there.

    The function chooses among the root's match pointers into the request. If a match is at least
    COPY_MATCH tokens long, only the longest matches are considered. Otherwise, all matches near
    `expected` are considered. The pointer closest to `expected` wins. If no match qualifies, the
    result is `expected`.

    Args:
        pool: Match pointers of the tree: positions after earlier occurrences of the same tokens.
        begin: Index of the first match pointer of the root.
        end: Index after the last match pointer of the root.
        expected: Position at which the copy continues if nothing was inserted or omitted; negative
            if nothing has been copied yet.
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
        # Moving backwards counts as twice the distance of moving forwards.
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

    The module docstring explains both kinds of weak matches by example. `_skip_last` adds matches
    that skip the newest token. `_relate` adds repetitions of recent tokens.

    Args:
        sources: Texts that are searched.
        pool: Match pointers of the tree: positions after earlier occurrences of the same tokens.
        begin: Index of the first match pointer of the node.
        count: Number of match pointers in the pool. The pointers from `begin` on belong to the
            node.
        query: Text to match.
    Returns:
        (new number of pointers, -1); if a shard is damaged, (DAMAGED, index of the shard).
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
    """Propose tokens from earlier text that differs only in the newest token.

    The function searches the request and the datastore for the two tokens before the newest token.
    After each occurrence, it skips one token and proposes the token that follows. For example, the
    newest tokens are 1 2 9, and an earlier text is 1 2 3 4. The function finds "1 2", skips 3, and
    proposes 4.

    Returns:
        (new number of pointers, -1); if a shard is damaged, (DAMAGED, index of the shard).
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
    """Propose repetitions of recent tokens, at the same distances as in earlier text.

    1. Each pointer in `offered` leads to a token in earlier text. If this token repeats a token
       shortly before it, the distance between the two tokens gets one vote (`_relation`).
    2. The function selects the distances with the most votes, at most MAX_RELATED of them.
    3. For each selected distance d, the function proposes the token d positions before the next
       token.

    For example, the earlier text is "= 7 >> 7", and the newest tokens are "= 9 >>". A pointer leads
    to the second 7, which repeats the token two positions before it. The distance 2 gets a vote.
    Two positions before the next token, the text now has a 9. The function therefore proposes 9.

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
    """Return how far before a proposed token its earlier copy is, or 0 if none.

    In this example, `pointer` leads to the second 7 in the earlier text. The match before it is the
    single token 21:

                         =============
        earlier text     20   7  21   7
        query            20   9  21
                         =============

    The second 7 repeats the token 2 positions before it, so the result is 2. In general, the result
    is the smallest distance d, from the match length + 1 to `reach`, with these properties:

    - The token d positions before the proposed token equals the proposed token.
    - The query has a different token at that place (here, 9 instead of 7).
    - The tokens one place earlier are equal (here, both are 20).

    Args:
        sources: Texts that are searched.
        query: Text to match.
        pointer: Match pointer to the proposed token.
        reach: Maximum distance, in tokens.
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
