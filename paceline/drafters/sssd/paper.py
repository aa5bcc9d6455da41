"""Merge sources with fixed weights (Marzollo et al. 2024, algorithm 1).

The weights are those of the public code. One tree of counts comes from the datastore: suffixes of
up to 4 tokens, at most 100 entries each, no shorter suffix once 50 continuations are known. One
tree per match length m of 1 to 4 comes from the request. A child of the request has 0.6 times its
share at first, and 0.6 + 0.1 m times share and parent below. A child of the datastore has its share
times its parent. One heap merges them; a token of two sources keeps the larger value. As in the
public code, output is searched once a whole window of 8 tokens is known.

After 1 2, with "1 2 3" twice and "1 2 4" once in the request, and "1 2 4" in 9 of 10 places in the
datastore:

    waiting    4 (store): 0.9    3 (m=2): 0.6 * 2/3 = 0.4    3 (m=1): 0.4    4 (m=2): 0.2 ...
    taken      4, then 3 (its children wait with 0.4 * (0.6 + 0.1 m) * share), then 3 again: known
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from paceline.datastore.rows import ShardRow
from paceline.drafters.sssd.counting import ORIGINS, OUTPUT, PROMPT, STORE
from paceline.drafters.sssd.evidence import (
    Pool,
    advance,
    copy_newest,
    look_up,
    new_pool,
    put,
    sample,
)
from paceline.drafters.sssd.pointers import REQUEST
from paceline.drafters.sssd.request_index import LONGEST, RequestText, occurrences
from paceline.drafters.sssd.tree import TREE_NODE, TreeNode, highest
from paceline.util.compiled import Records, compiled, kernel, record_dtype

PREFIX = 4  # tokens of the query
_ENTRIES, _CONTINUATIONS = 100, 50
_WINDOW = 8  # tokens of the request that are kept together, the match among them
_BORDER = 3  # last tokens of the prompt that go into the windows of the output
_SCALE, _DAMPENING, _PER_MATCH = 0.6, 0.6, 0.1
_SIZE_INDEX = (0, 1, 1, 2)  # of NGRAM_SIZES: the chain in which matches of 1 to 4 tokens are found
_LINKS = 1024  # of a chain that are followed
_DEEP = 1e-9  # per level: ties go to the deeper one


class Candidate:
    """Describe a token of one source that waits to enter the tree."""

    token: int
    parent: int  # node of the tree, 0 = root
    depth: int
    begin: int  # pointers above it: [begin, end)
    end: int
    source: int  # 0 = datastore, m = matches of m tokens in the request
    path_confidence: float  # of the whole path


CANDIDATE = record_dtype(Candidate)


class Merge(NamedTuple):
    """Hold the scratch arrays for one tree after the other.

    Attributes:
        pool: Pointers of the tree.
        waiting: [room] the heap, as a list.
        tree: [1 + max_nodes].
    """

    pool: Pool
    waiting: Records[Candidate]
    tree: Records[TreeNode]


@compiled
def new_merge(most: int, shards: int) -> Merge:
    """Return scratch arrays for trees of up to `most` nodes, one at a time."""
    room = 4 * _LINKS + PREFIX * _ENTRIES
    pool = new_pool(4 * room, _LINKS, most + 1, shards)
    return Merge(pool, np.empty(room, dtype=CANDIDATE), np.empty(1 + most, dtype=TREE_NODE))


@kernel
def branch_length(nodes: int) -> int:
    """Return the maximum branch length from the datastore, by the size of the tree."""
    if nodes <= 5:
        return max(1, nodes - 1)
    return 5 if nodes <= 8 else 6 if nodes <= 32 else 8 if nodes <= 48 else 10


@kernel
def merge_sources(
    text: RequestText, table: Records[ShardRow], merge: Merge, nodes: int, levels: int
) -> int:
    """Merge the sources into one tree of up to `nodes` nodes and `levels` levels.

    Returns:
        Its size, or -1 - the index of a damaged shard.
    """
    pool, tree, waiting = merge.pool, merge.tree, merge.waiting
    context = copy_newest(text, pool)
    tree[0].depth, tree[0].path_confidence = 0, 1.0
    used, count = 0, 0
    for source in range(PREFIX + 1):
        begin = used
        used = (
            _from_store(table, pool, used, context)
            if source == 0
            else _from_request(text, pool, used, context, source)
        )
        if used < 0:
            return used
        count = _push(merge, count, begin, used, source, 0, 1.0 if source == 0 else _SCALE)
    size = 0
    while size < nodes and count > 0:
        best = highest(waiting, count)
        taken = waiting[best]
        token, source, depth, first, last = (
            taken.token,
            taken.source,
            taken.depth,
            taken.begin,
            taken.end,
        )
        path = taken.path_confidence - _DEEP * depth
        before = size
        node, size = _insert(tree, size, taken, path)
        if size > before:
            tree[node].origin = _origin(text, pool, source, first, last, token)
        count -= 1
        waiting[best] = waiting[count]
        longest = branch_length(nodes) if source == 0 else _WINDOW - source
        if depth >= min(longest, levels):
            continue
        above = node
        for level in range(depth - 1, -1, -1):
            pool.tail[LONGEST + level], above = tree[above].token, tree[above].parent
        begin = used
        used, shard = advance(table, text, pool, first, last, token, used, last - first, depth)
        if used < 0:
            return -1 - shard
        factor = path if source == 0 else path * (_DAMPENING + _PER_MATCH * source)
        count = _push(merge, count, begin, used, source, node, factor)
    return size


@kernel
def _from_store(table: Records[ShardRow], pool: Pool, used: int, context: int) -> int:
    """Add pointers of all suffixes; return their number or -1 - damaged shard."""
    begin, ranges = used, pool.ranges[0]
    for size in range(min(PREFIX, context), 0, -1):
        total, shard = look_up(table, pool.tail, LONGEST - size, LONGEST, ranges)
        if total > 0:  # how much further a match goes does not count: nothing before it is read
            used, shard = sample(
                table, pool, ranges, used, size, 0, size, LONGEST + 1, total, _ENTRIES
            )
        if total < 0 or used < 0:
            return -1 - shard
        if used - begin >= _CONTINUATIONS:
            break
    return used


@kernel
def _from_request(text: RequestText, pool: Pool, used: int, context: int, size: int) -> int:
    """Add pointers after all earlier occurrences of the last `size` tokens."""
    found = occurrences(
        text,
        _SIZE_INDEX[size - 1],
        pool.tail,
        LONGEST - context,
        LONGEST,
        LONGEST + 1,
        pool.found,
        0,
        _LINKS,
    )
    for index in range(found):
        place = pool.found[index].place
        first = place - size
        if pool.found[index].match >= size and (
            first + _WINDOW <= text.length or first < text.prompt_length - _BORDER
        ):
            used = put(pool, used, place, REQUEST, size, text.ids[place])
    return used


@kernel
def _push(
    merge: Merge, count: int, begin: int, end: int, source: int, parent: int, factor: float
) -> int:
    """Add the tokens after the pointers [begin, end) to the heap; return its size."""
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
            new.path_confidence = _DEEP * depth
            count += 1
        waiting[entry].path_confidence += factor / total
    return count


@kernel
def _origin(text: RequestText, pool: Pool, source: int, begin: int, end: int, token: int) -> Any:
    """Return the origin of a candidate: where most of its positions are."""
    if source == 0:
        return ORIGINS[STORE]
    balance = 0
    for index in range(begin, end):
        if pool.pointers[index].token == token:
            balance += 1 if pool.pointers[index].place >= text.prompt_length else -1
    return ORIGINS[OUTPUT if balance > 0 else PROMPT]


@kernel
def _insert(tree: Records[TreeNode], size: int, taken: Candidate, path: float) -> tuple[int, int]:
    """Return the tree node of a candidate, created if missing, and the size."""
    for node in range(1, size + 1):
        if tree[node].parent == taken.parent and tree[node].token == taken.token:
            return node, size
    size += 1
    new = tree[size]
    new.token, new.parent, new.depth = taken.token, taken.parent, taken.depth
    new.path_confidence = path
    new.confidence = min(1.0, path / tree[taken.parent].path_confidence)
    return size, size
