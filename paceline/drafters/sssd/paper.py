"""Merge trees from the datastore and the request (Marzollo et al. 2024, alg. 1).

The datastore yields one tree. The drafter looks up the last 4 tokens of the text in the datastore,
then the last 3, 2 and 1, and counts the tokens that follow the matches. Each look-up uses at most
100 matches. The drafter stops once it has found 50 continuations.

The request yields four trees, one for each match length m from 1 to 4. As in the authors' code, a
match in the output counts only if the match and the text after it have at least 8 tokens in total.

A token's share is its count, divided by the number of matches at its parent. The score of a token
depends on the share. The fixed weights are those of the authors' code:

    datastore                  share * parent's score
    request, first level       0.6 * share
    request, deeper levels     (0.6 + 0.1 m) * share * parent's score

A heap merges the five trees: the token with the highest score is added next. If two sources propose
a token, the higher score applies.

For example, the newest tokens are "1 2". The request contains "1 2 3" twice, "1 2 4" once, and no
other 2. In the datastore, 9 of 10 matches of "1 2" continue with 4. The heap first contains 4 from
the datastore (0.9), 3 with m=2 (0.6 * 2/3 = 0.4) and 3 with m=1 (0.4), and less likely tokens.

1. Add 4 to the tree. Its children enter the heap with the scores 0.9 * share.
2. Add 3 (m=2). Its children enter the heap with the scores 0.4 * 0.8 * share.
3. The next token, 3 (m=1), is already in the tree, so only its children enter the heap.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from paceline.drafters.sssd.counting import ORIGINS, OUTPUT, PROMPT, STORE
from paceline.drafters.sssd.paper_settings import (
    BORDER,
    BRANCH_LENGTHS,
    CHAIN_OF_MATCH,
    DAMPENING,
    DAMPENING_PER_MATCH,
    DEPTH_BONUS,
    ENOUGH_CONTINUATIONS,
    MAX_BRANCH,
    MAX_LINKS,
    PREFIX,
    REQUEST_SCALE,
    SHORT_TREE,
    STORE_ENTRIES,
    WINDOW,
)
from paceline.drafters.sssd.pointers import REQUEST
from paceline.drafters.sssd.pool import (
    PointerRange,
    Pool,
    Sources,
    copy_newest,
    new_pool,
    put,
    query_of,
)
from paceline.drafters.sssd.request_index import RequestText, occurrences
from paceline.drafters.sssd.request_matches import advance
from paceline.drafters.sssd.settings import LONGEST
from paceline.drafters.sssd.store_matches import SuffixMatches, look_up, sample
from paceline.drafters.sssd.tree import TREE_NODE, TreeNode, highest
from paceline.util.compiled import Records, compiled, kernel, record_dtype


class Candidate:
    """A token from one source that may be added to the draft tree.

    A match pointer (`pointers`) leads to an earlier occurrence of the parent's path. The match
    pointers for one parent and one source have consecutive indices.

    Attributes:
        token: Token id.
        parent: Node of the tree that would be the token's parent; 0 for the root.
        depth: Depth of the token.
        begin: Index of the first match pointer for this parent and source.
        end: Index after the last match pointer for this parent and source.
        source: 0 for the datastore; m for matches of m tokens in the request.
        path_confidence: Score of the whole path from the root to the token.
    """

    token: int
    parent: int
    depth: int
    begin: int
    end: int
    source: int
    path_confidence: float


CANDIDATE = record_dtype(Candidate)


class Merge(NamedTuple):
    """Scratch arrays for merging the matches of all sources into one draft tree.

    Every new draft tree overwrites the arrays.

    Attributes:
        pool: Match pointers of all nodes. The pointers of a node lead to earlier occurrences of the
            node's path (module `pointers`).
        waiting: Heap of tokens that may be added to the tree, followed by unused entries.
        tree: Root and nodes of the tree, [1 + max_nodes].
    """

    pool: Pool
    waiting: Records[Candidate]
    tree: Records[TreeNode]


@compiled
def new_merge(max_nodes: int, shards: int) -> Merge:
    """Return scratch arrays for drafting one tree of up to `max_nodes` nodes."""
    room = 4 * MAX_LINKS + PREFIX * STORE_ENTRIES
    pool = new_pool(4 * room, MAX_LINKS, max_nodes + 1, shards)
    return Merge(pool, np.empty(room, dtype=CANDIDATE), np.empty(1 + max_nodes, dtype=TREE_NODE))


@kernel
def branch_length(nodes: int) -> int:
    """Return the maximum length of a datastore branch in a tree with `nodes` nodes."""
    if nodes <= SHORT_TREE:
        return max(1, nodes - 1)
    for max_nodes, length in BRANCH_LENGTHS:
        if nodes <= max_nodes:
            return length
    return MAX_BRANCH


@kernel
def merge_sources(sources: Sources, merge: Merge, nodes: int, levels: int) -> int:
    """Merge matches in the request and in the datastore into one draft tree.

    Args:
        sources: Texts of the request and of the datastore.
        merge: Scratch arrays; `merge.tree` receives the draft tree.
        nodes: Maximum number of nodes.
        levels: Maximum number of levels.
    Returns:
        The number of nodes in the tree, or `-1 - i` if shard i of the datastore is damaged.
    """
    pool, tree, waiting = merge.pool, merge.tree, merge.waiting
    used, count = _first_candidates(sources, merge)
    if used < 0:
        return used
    size = 0
    while size < nodes and count > 0:
        best = highest(waiting, count)
        taken = waiting[best]
        token, source, depth = taken.token, taken.source, taken.depth
        pointers = PointerRange(taken.begin, taken.end)
        path = taken.path_confidence - DEPTH_BONUS * depth
        before = size
        node, size = _insert(tree, size, taken, path)
        if size > before:
            tree[node].origin = _origin(sources.text, pool, source, pointers, token)
        count -= 1
        waiting[best] = waiting[count]
        longest = branch_length(nodes) if source == 0 else WINDOW - source
        if depth >= min(longest, levels):
            continue
        above = node
        for level in range(depth - 1, -1, -1):
            pool.tail[LONGEST + level], above = tree[above].token, tree[above].parent
        begin = used
        used, shard = advance(
            sources, pool, pointers, token, used, pointers.end - pointers.begin, depth
        )
        if used < 0:
            return -1 - shard
        factor = path if source == 0 else path * (DAMPENING + DAMPENING_PER_MATCH * source)
        count = _push(merge, count, PointerRange(begin, used), source, node, factor)
    return size


@kernel
def _first_candidates(sources: Sources, merge: Merge) -> tuple[int, int]:
    """Push the tokens that follow the newest tokens in each source onto the heap.

    Returns:
        The number of match pointers and the number of tokens. If shard i is damaged, the result is
        (-1 - i, 0).
    """
    pool = merge.pool
    context = copy_newest(sources.text, pool)
    merge.tree[0].depth, merge.tree[0].path_confidence = 0, 1.0
    used, count = 0, 0
    for source in range(PREFIX + 1):
        begin = used
        used = (
            _from_store(sources, pool, used, context)
            if source == 0
            else _from_request(sources.text, pool, used, context, source)
        )
        if used < 0:
            return used, 0
        factor = 1.0 if source == 0 else REQUEST_SCALE
        count = _push(merge, count, PointerRange(begin, used), source, 0, factor)
    return used, count


@kernel
def _from_store(sources: Sources, pool: Pool, used: int, context: int) -> int:
    """Add pointers to the tokens that follow the newest tokens in the datastore.

    Returns:
        The number of pointers in the pool, or `-1 - i` if shard i is damaged.
    """
    table, begin, ranges = sources.table, used, pool.ranges[0]
    for size in range(min(PREFIX, context), 0, -1):
        query = query_of(pool, size, 0)
        total, shard = look_up(table, pool.tail, query.begin, query.end, ranges)
        if total > 0:  # the query is the whole suffix, so no earlier tokens are compared
            used, shard = sample(
                table,
                pool,
                used,
                query,
                SuffixMatches(size, ranges, total),
                LONGEST + 1,
                STORE_ENTRIES,
            )
        if total < 0 or used < 0:
            return -1 - shard
        if used - begin >= ENOUGH_CONTINUATIONS:
            break
    return used


@kernel
def _from_request(text: RequestText, pool: Pool, used: int, context: int, size: int) -> int:
    """Add pointers to the tokens after earlier occurrences of the last `size` tokens."""
    query, chain = query_of(pool, context, 0), CHAIN_OF_MATCH[size - 1]
    matches = occurrences(text, chain, query, LONGEST + 1, pool.scratch, 0, MAX_LINKS)
    for index in range(matches):
        position = pool.scratch[index].position
        first = position - size
        if pool.scratch[index].match >= size and (
            first + WINDOW <= text.length or first < text.prompt_length - BORDER
        ):
            used = put(pool, used, position, REQUEST, size, text.ids[position])
    return used


@kernel
def _push(
    merge: Merge, count: int, pointers: PointerRange, source: int, parent: int, factor: float
) -> int:
    """Push the tokens that `pointers` lead to onto the heap; return the heap's size."""
    begin, end = pointers
    waiting, first, total = merge.waiting, count, end - begin
    depth = merge.tree[parent].depth + 1
    for index in range(begin, end):
        token = merge.pool.pointers[index].token
        if token < 0:
            continue
        entry = first
        while entry < count and waiting[entry].token != token:
            entry += 1
        if entry == count:
            if count == len(waiting):
                continue
            new = waiting[entry]
            new.token, new.parent, new.depth = token, parent, depth
            new.begin, new.end, new.source = begin, end, source
            new.path_confidence = DEPTH_BONUS * depth
            count += 1
        waiting[entry].path_confidence += factor / total
    return count


@kernel
def _origin(text: RequestText, pool: Pool, source: int, pointers: PointerRange, token: int) -> Any:
    """Return a candidate's origin: the text that contains most of its matches."""
    if source == 0:
        return ORIGINS[STORE]
    balance = 0
    for index in range(pointers.begin, pointers.end):
        if pool.pointers[index].token == token:
            balance += 1 if pool.pointers[index].position >= text.prompt_length else -1
    return ORIGINS[OUTPUT if balance > 0 else PROMPT]


@kernel
def _insert(tree: Records[TreeNode], size: int, taken: Candidate, path: float) -> tuple[int, int]:
    """Return a candidate's node, creating it if needed, and the size of the tree."""
    for node in range(1, size + 1):
        if tree[node].parent == taken.parent and tree[node].token == taken.token:
            return node, size
    size += 1
    new = tree[size]
    new.token, new.parent, new.depth = taken.token, taken.parent, taken.depth
    new.path_confidence = path
    new.confidence = min(1.0, path / tree[taken.parent].path_confidence)
    return size, size
