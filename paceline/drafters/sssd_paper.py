"""Fusion with the paper's hand-set weights, as its public code has them (Marzollo et al. 2024, Algorithm 1).

One tree of counts from the datastore (suffixes of 4 tokens and fewer, at most 100 entries each, no shorter one from 50
continuations on, summed) and one from the request for each match length m of 1 to 4. A child of the request has 0.6 times
its share at first, and 0.6 + 0.1 m times share and parent below; one of the datastore its share times its parent. One heap
merges them; where two sources have the same token the larger chance stays. Unlike there, the newest tokens of the request
are searched at once.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from paceline.datastore.compiled import compiled
from paceline.drafters.request_index import LONGEST, Text, extend, occurrences
from paceline.drafters.sssd_evidence import (
    FIELDS,
    MATCH,
    NEXT,
    PLACE,
    REQUEST,
    SHARD,
    Pool,
    carry,
    look_ahead,
    look_up,
    sample,
)

PREFIX = 4  # tokens of the query
_ENTRIES, _CONTINUATIONS = 100, 50
_WINDOW = 8  # tokens of the request that are kept together, the match among them
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


@compiled
def branch_length(nodes: int) -> int:
    """Most tokens of a branch from the datastore, by the size of the tree."""
    if nodes <= 5:
        return max(1, nodes - 1)
    return 5 if nodes <= 8 else 6 if nodes <= 32 else 8 if nodes <= 48 else 10


@compiled
def draft_batch_paper(
    rows: NDArray[np.int64],
    fresh: NDArray[np.int64],
    offsets: NDArray[np.int64],
    table: NDArray[np.int64],
    limits: NDArray[np.int64],
    tokens: NDArray[np.int64],
    parents: NDArray[np.int64],
    chances: NDArray[np.float64],
    sizes: NDArray[np.int64],
) -> int:
    """As `sssd_search.draft_batch`, with the paper's weights.

    Returns:
        -1, or the index of a damaged shard.
    """
    most = tokens.shape[1]
    room = 4 * _LINKS + PREFIX * _ENTRIES
    pool = Pool(
        np.empty((4 * room, FIELDS), dtype=np.int64),
        np.empty((_LINKS, 2), dtype=np.int64),
        np.empty((len(table), 2), dtype=np.int64),
        np.empty(LONGEST + most + 1, dtype=np.int64),
    )
    merge = Merge(np.empty((room, 6), np.int64), np.empty(room), np.empty((1 + most, 3), np.int64), np.empty(1 + most))
    for index in range(len(rows)):
        text = extend(rows[index], fresh[offsets[index] : offsets[index + 1]])
        sizes[index] = 0
        if limits[index, 0] <= 0 or limits[index, 1] <= 0:
            continue
        size = _merged(text, table, pool, merge, limits[index])
        if size < 0:
            return -1 - size
        sizes[index] = size
        for node in range(size):
            tokens[index, node], parents[index, node] = merge.nodes[node + 1, _TOKEN], merge.nodes[node + 1, _PARENT] - 1
            chances[index, node] = min(1.0, merge.paths[node + 1] / merge.paths[merge.nodes[node + 1, _PARENT]])
    return -1


@compiled
def _merged(text: Text, table: NDArray[np.int64], pool: Pool, merge: Merge, limits: NDArray[np.int64]) -> int:
    """One tree: its size, or -1 - the index of a damaged shard."""
    context = min(text.length, LONGEST)
    pool.tail[LONGEST - context : LONGEST] = text.ids[text.length - context : text.length]
    merge.nodes[0], merge.paths[0] = 0, 1.0
    used, waiting = 0, 0
    for source in range(PREFIX + 1):
        begin = used
        used = _from_store(table, pool, used, context) if source == 0 else _from_request(text, pool, used, context, source)
        if used < 0:
            return used
        damaged = look_ahead(table, text, pool, begin, used, 0)
        if damaged >= 0:
            return -1 - damaged
        waiting = _push(pool, merge, waiting, begin, used, source, 0, 1.0 if source == 0 else _SCALE)
    size = 0
    while size < limits[0] and waiting > 0:
        best = np.argmax(merge.chances[:waiting])
        entry, path = merge.waiting[best].copy(), merge.chances[best] - _DEEP * merge.waiting[best, _DEPTH]
        waiting -= 1
        merge.waiting[best], merge.chances[best] = merge.waiting[waiting], merge.chances[waiting]
        node, size = _insert(merge, size, entry, path)
        source, depth = entry[_SOURCE], entry[_DEPTH]
        longest = branch_length(limits[0]) if source == 0 else _WINDOW - source
        if depth >= min(longest, limits[1]):
            continue
        above = node
        for level in range(depth - 1, -1, -1):
            pool.tail[LONGEST + level], above = merge.nodes[above, _TOKEN], merge.nodes[above, _PARENT]
        begin, used = used, carry(pool, entry[_BEGIN], entry[_END], entry[_TOKEN], used, entry[_END] - entry[_BEGIN])
        damaged = look_ahead(table, text, pool, begin, used, depth)
        if damaged >= 0:
            return -1 - damaged
        factor = path if source == 0 else path * (_DAMPENING + _PER_MATCH * source)
        waiting = _push(pool, merge, waiting, begin, used, source, node, factor)
    return size


@compiled
def _from_store(table: NDArray[np.int64], pool: Pool, used: int, context: int) -> int:
    """Pointers of all suffixes that are looked up; -1 - the index of a damaged shard."""
    begin = used
    for size in range(min(PREFIX, context), 0, -1):
        total, shard = look_up(table, pool, LONGEST - size, LONGEST)
        if total > 0:
            used, shard = sample(table, pool, used, context, 0, size, LONGEST + 1, total, _ENTRIES)
        if total < 0 or used < 0:
            return -1 - shard
        if used - begin >= _CONTINUATIONS:
            break
    return used


@compiled
def _from_request(text: Text, pool: Pool, used: int, context: int, size: int) -> int:
    """Pointers behind all earlier places of the last `size` tokens."""
    found = occurrences(text, _KINDS[size - 1], pool.tail, LONGEST - context, LONGEST, LONGEST + 1, pool.found, 0, _LINKS)
    for index in range(found):
        if pool.found[index, 1] >= size:
            pool.pointers[used, PLACE], pool.pointers[used, MATCH] = pool.found[index, 0], size
            pool.pointers[used, SHARD] = REQUEST
            used += 1
    return used


@compiled
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


@compiled
def _insert(merge: Merge, size: int, entry: NDArray[np.int64], path: float) -> tuple[int, int]:
    """The child of the tree with this token, made if it is not there; and the size of the tree."""
    for node in range(1, size + 1):
        if merge.nodes[node, _PARENT] == entry[_PARENT] and merge.nodes[node, _TOKEN] == entry[_TOKEN]:
            return node, size
    size += 1
    merge.nodes[size, _TOKEN], merge.nodes[size, _PARENT] = entry[_TOKEN], entry[_PARENT]
    merge.nodes[size, _DEPTH] = entry[_DEPTH]
    merge.paths[size] = path
    return size, size
