"""Find matches in the request, and advance a node's matches to its children.

A match is an earlier occurrence of the newest tokens. Its pointer is the position directly after
the match.
"""

from __future__ import annotations

from paceline.datastore.rows import DAMAGED, Query
from paceline.drafters.sssd.pointers import ENDS, REQUEST, UNREADABLE
from paceline.drafters.sssd.pool import PointerRange, Pool, Sources, put
from paceline.drafters.sssd.request_index import RequestText, occurrences
from paceline.drafters.sssd.settings import (
    ENOUGH_REQUEST,
    LONGEST,
    NGRAM_SIZES,
    NODE_LINKS,
    ROOT_LINKS,
)
from paceline.drafters.sssd.store_matches import stored_token
from paceline.util.compiled import kernel


@kernel
def point_into_request(
    text: RequestText, pool: Pool, count: int, query: Query, below: int
) -> tuple[int, int]:
    """Add pointers to matches in the request, with the longest matches first.

    A match is an earlier occurrence of the query's last tokens. The pointer to a match is the
    position directly after the match.

    Args:
        text: Text of the request.
        pool: Match pointers of the tree.
        count: Number of pointers in the pool so far.
        query: Text whose last tokens are matched.
        below: Only matches shorter than this number of tokens are added.
    Returns:
        The new number of pointers in the pool, and the shortest match length that was searched.
    """
    first, lowest = count, below
    max_links = ROOT_LINKS if query.end == LONGEST else NODE_LINKS
    for size_index in range(len(NGRAM_SIZES) - 1, -1, -1):
        if NGRAM_SIZES[size_index] >= below:
            continue
        if count - first >= ENOUGH_REQUEST:
            break
        matches = occurrences(text, size_index, query, lowest, pool.scratch, 0, max_links)
        for index in range(min(matches, len(pool.pointers) - count)):
            match = pool.scratch[index]
            count = put(pool, count, match.position, REQUEST, match.match, text.ids[match.position])
        lowest = NGRAM_SIZES[size_index]
    return count, lowest


@kernel
def advance(
    sources: Sources,
    pool: Pool,
    parent: PointerRange,
    token: int,
    count: int,
    limit: int,
    depth: int,
) -> tuple[int, int]:
    """Add a child's match pointers: the parent's pointers, advanced by one token.

    A pointer is the position after an earlier occurrence of the newest tokens. The child inherits
    only the parent's pointers to positions that contain the child's token.

    Args:
        sources: Texts that the pointers refer to.
        pool: Match pointers of the tree.
        parent: Range of the parent's pointers in the pool.
        token: Token of the child.
        count: Number of pointers in the pool so far.
        limit: Maximum number of pointers to add.
        depth: Depth of the child.
    Returns:
        (new number of pointers in the pool, number of added pointers that lead to the request); if
        a shard is damaged, (DAMAGED, index of the shard).
    """
    text = sources.text
    room, num_request = min(len(pool.pointers), count + limit), 0
    for index in range(parent.begin, parent.end):
        pointer = pool.pointers[index]
        if pointer.token != token or count >= room:
            continue
        position, shard = pointer.position + 1, pointer.shard
        if shard != REQUEST:
            following = stored_token(sources.table[shard], position)
            if following == UNREADABLE:
                return DAMAGED, shard
        else:
            num_request += 1
            following = ENDS
            # A match that reaches the end of the request continues with the drafted path.
            if position < text.length:
                following = text.ids[position]
            elif position < text.length + depth:
                following = pool.tail[LONGEST + position - text.length]
        match = min(max(0, pointer.match) + 1, LONGEST)
        count = put(pool, count, position, shard, match, following)
    return count, num_request
