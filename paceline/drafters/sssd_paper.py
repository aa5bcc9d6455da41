"""Fusion with the paper's hand-set weights, as its public code has them (Marzollo et al. 2024, Algorithm 1).

One tree of counts from the datastore (suffixes of 4 tokens and fewer, at most 100 entries each, no shorter one from 50
continuations on, summed) and one from the request for each match length m of 1 to 4. A child of the request has 0.6 times
its share at first, and 0.6 + 0.1 m times share and parent below; one of the datastore its share times its parent. One heap
merges them; where two sources have the same token the larger chance stays. As there, output is searched once a whole window of
8 tokens is known.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from paceline.datastore.compiled import compiled, kernel, take_number
from paceline.drafters.request_index import (
    JOB_BEGIN,
    JOB_END,
    JOB_LEVELS,
    JOB_NODES,
    JOB_ROW,
    JOB_SIZE,
    LONGEST,
    Text,
    extend,
    occurrences,
    row_at,
)
from paceline.drafters.sssd_evidence import (
    MATCH,
    NEXT,
    PLACE,
    REQUEST,
    SHARD,
    Pool,
    carry,
    highest,
    look_up,
    new_pool,
    sample,
    show_newest,
)

PREFIX = 4  # tokens of the query
_ENTRIES, _CONTINUATIONS = 100, 50
_WINDOW = 8  # tokens of the request that are kept together, the match among them
_BORDER = 3  # last tokens of the prompt that go into the windows of the output
_SCALE, _DAMPENING, _PER_MATCH = 0.6, 0.6, 0.1
_KINDS = (0, 1, 1, 2)  # the chain in which matches of 1 to 4 tokens are found
_LINKS = 1024  # of a chain that are followed
_DEEP = 1e-9  # per level: ties go to the deeper one
_TOKEN, _PARENT, _DEPTH, _BEGIN, _END, _SOURCE = range(6)


class Merge(NamedTuple):
    """The heap (as a list) and the tree.

    Attributes:
        waiting: [room, 6] token, parent in the tree, depth, range of the pointers above it, source (0 = datastore, m).
        chances: [room] of the whole path. nodes: [1 + most, 3] token, parent, depth. paths: [1 + most] chances of whole paths.
    """

    waiting: NDArray[np.int64]
    chances: NDArray[np.float64]
    nodes: NDArray[np.int64]
    paths: NDArray[np.float64]


@kernel
def branch_length(nodes: int) -> int:
    """Most tokens of a branch from the datastore, by the size of the tree."""
    if nodes <= 5:
        return max(1, nodes - 1)
    return 5 if nodes <= 8 else 6 if nodes <= 32 else 8 if nodes <= 48 else 10


@compiled
def draft_batch_paper(
    jobs: NDArray[np.int64],
    fresh: NDArray[np.int64],
    table: NDArray[np.int64],
    tokens: NDArray[np.int64],
    parents: NDArray[np.int64],
    chances: NDArray[np.float64],
    taken: NDArray[np.int64],
) -> int:
    """As `sssd_search.draft_batch`, with the paper's weights.

    Returns:
        -1, or the index of a damaged shard.
    """
    most = tokens.shape[1]
    room = 4 * _LINKS + PREFIX * _ENTRIES
    pool = new_pool(4 * room, _LINKS, most + 1, len(table))
    merge = Merge(np.empty((room, 6), np.int64), np.empty(room), np.empty((1 + most, 3), np.int64), np.empty(1 + most))
    while True:
        index = take_number(taken.ctypes.data)
        if index >= len(jobs):
            return -1
        job = jobs[index]
        text = extend(row_at(job[JOB_ROW]), fresh[job[JOB_BEGIN] : job[JOB_END]])
        job[JOB_SIZE] = 0
        if job[JOB_NODES] <= 0 or job[JOB_LEVELS] <= 0:
            continue
        size = _merged(text, table, pool, merge, job[JOB_NODES], job[JOB_LEVELS])
        if size < 0:
            return -1 - size
        job[JOB_SIZE] = size
        for node in range(size):
            tokens[index, node], parents[index, node] = merge.nodes[node + 1, _TOKEN], merge.nodes[node + 1, _PARENT] - 1
            chances[index, node] = min(1.0, merge.paths[node + 1] / merge.paths[merge.nodes[node + 1, _PARENT]])


@kernel
def _merged(text: Text, table: NDArray[np.int64], pool: Pool, merge: Merge, nodes: int, levels: int) -> int:
    """One tree of up to `nodes` nodes and `levels` levels: its size, or -1 - the index of a damaged shard."""
    context = show_newest(text, pool)
    merge.nodes[0], merge.paths[0] = 0, 1.0
    used, waiting = 0, 0
    for source in range(PREFIX + 1):
        begin = used
        used = _from_store(table, pool, used, context) if source == 0 else _from_request(text, pool, used, context, source)
        if used < 0:
            return used
        waiting = _push(pool, merge, waiting, begin, used, source, 0, 1.0 if source == 0 else _SCALE)
    size = 0
    while size < nodes and waiting > 0:
        best = highest(merge.chances, waiting)
        token, source = merge.waiting[best, _TOKEN], merge.waiting[best, _SOURCE]
        depth, first, last = merge.waiting[best, _DEPTH], merge.waiting[best, _BEGIN], merge.waiting[best, _END]
        path = merge.chances[best] - _DEEP * depth
        node, size = _insert(merge, size, best, path)
        waiting -= 1
        for column in range(6):
            merge.waiting[best, column] = merge.waiting[waiting, column]
        merge.chances[best] = merge.chances[waiting]
        longest = branch_length(nodes) if source == 0 else _WINDOW - source
        if depth >= min(longest, levels):
            continue
        above = node
        for level in range(depth - 1, -1, -1):
            pool.tail[LONGEST + level], above = merge.nodes[above, _TOKEN], merge.nodes[above, _PARENT]
        begin = used
        used, shard = carry(table, text, pool, first, last, token, used, last - first, depth)
        if used < 0:
            return -1 - shard
        factor = path if source == 0 else path * (_DAMPENING + _PER_MATCH * source)
        waiting = _push(pool, merge, waiting, begin, used, source, node, factor)
    return size


@kernel
def _from_store(table: NDArray[np.int64], pool: Pool, used: int, context: int) -> int:
    """Pointers of all suffixes that are looked up; -1 - the index of a damaged shard."""
    begin, ranges = used, pool.ranges[0]
    for size in range(min(PREFIX, context), 0, -1):
        total, shard = look_up(table, pool.tail, LONGEST - size, LONGEST, ranges)
        if total > 0:  # how much further a match goes does not count: nothing before it is read
            used, shard = sample(table, pool, ranges, used, size, 0, size, LONGEST + 1, total, _ENTRIES)
        if total < 0 or used < 0:
            return -1 - shard
        if used - begin >= _CONTINUATIONS:
            break
    return used


@kernel
def _from_request(text: Text, pool: Pool, used: int, context: int, size: int) -> int:
    """Pointers behind all earlier places of the last `size` tokens."""
    found = occurrences(text, _KINDS[size - 1], pool.tail, LONGEST - context, LONGEST, LONGEST + 1, pool.found, 0, _LINKS)
    for index in range(found):
        place = pool.found[index, 0]
        first = place - size
        if pool.found[index, 1] >= size and (first + _WINDOW <= text.length or first < text.prompt - _BORDER):
            pool.pointers[used, PLACE], pool.pointers[used, MATCH] = place, size
            pool.pointers[used, SHARD], pool.pointers[used, NEXT] = REQUEST, text.ids[place]
            used += 1
    return used


@kernel
def _push(pool: Pool, merge: Merge, waiting: int, begin: int, end: int, source: int, parent: int, factor: float) -> int:
    """Put the tokens that follow the pointers [begin, end) on the heap; how many wait now."""
    first, total = waiting, end - begin
    depth = merge.nodes[parent, _DEPTH] + 1
    for index in range(begin, end):
        token = pool.pointers[index, NEXT]
        if token < 0:
            continue
        entry = first
        while entry < waiting and merge.waiting[entry, _TOKEN] != token:
            entry += 1
        if entry == waiting:
            if waiting == len(merge.waiting):
                continue
            merge.waiting[entry, _TOKEN], merge.waiting[entry, _PARENT], merge.waiting[entry, _DEPTH] = token, parent, depth
            merge.waiting[entry, _BEGIN], merge.waiting[entry, _END], merge.waiting[entry, _SOURCE] = begin, end, source
            merge.chances[entry] = _DEEP * depth
            waiting += 1
        merge.chances[entry] += factor / total
    return waiting


@kernel
def _insert(merge: Merge, size: int, entry: int, path: float) -> tuple[int, int]:
    """The node of the tree that is what waits at `entry`, made if it is not there; and the size of the tree."""
    parent, token = merge.waiting[entry, _PARENT], merge.waiting[entry, _TOKEN]
    for node in range(1, size + 1):
        if merge.nodes[node, _PARENT] == parent and merge.nodes[node, _TOKEN] == token:
            return node, size
    size += 1
    merge.nodes[size, _TOKEN], merge.nodes[size, _PARENT] = token, parent
    merge.nodes[size, _DEPTH] = merge.waiting[entry, _DEPTH]
    merge.paths[size] = path
    return size, size
