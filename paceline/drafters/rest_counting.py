"""What REST does with a store, compiled: the first suffixes of a range, their continuations, and the prefixes found most often.

The prefixes of all continuations of one query form a trie. Its nodes are columns of an array in the order in which they were
first seen, so that a parent stands before its children.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from paceline.datastore.compiled import compiled
from paceline.datastore.search import find, range_of, read, suffix_at

_TOKEN, _PARENT, _DEPTH, _COUNT = range(4)  # rows of a trie; the parent of a first token is -1, its depth 1


@compiled
def draft(
    table: NDArray[np.int64],
    ids: NDArray[np.int64],
    offsets: NDArray[np.int64],
    spans: tuple[int, int],
    matches: int,
    depths: NDArray[np.int64],
    limits: NDArray[np.int64],
    tokens: NDArray[np.int64],
    parents: NDArray[np.int64],
    shares: NDArray[np.float64],
    sizes: NDArray[np.int64],
) -> int:
    """A tree for each query: the prefixes most frequent behind its longest suffix that the store continues.

    Args:
        table: of a snapshot, which the caller keeps alive.
        ids, offsets: [total], [batch + 1] query b is ids[offsets[b]:offsets[b + 1]].
        spans: the shortest and the longest suffix of a query that is looked up.
        matches: most suffixes read in each shard: the first ones of the range.
        depths, limits: [batch] most tokens of a continuation, and most nodes of the tree.
        tokens, parents, shares: [batch, nodes] filled; `shares` is the frequency of a prefix over that of its parent.
        sizes: [batch] filled: nodes of each tree; 0 where nothing was found.
    Returns:
        -1, or the index of a damaged shard; then the rest is not filled.
    """
    sizes[:] = 0
    shortest, longest = spans
    low = np.empty((sizes.size, longest, len(table)), dtype=np.int64)
    high, lengths = np.empty_like(low), np.empty((sizes.size, 2), dtype=np.int64)
    damaged = find(table, ids, offsets, shortest, 1, low, high, lengths)
    for query in range(sizes.size if damaged < 0 else 0):
        end = offsets[query + 1]
        for length in range(lengths[query, 0], shortest - 1, -1):
            if min(depths[query], limits[query]) < 1:
                break
            damaged, rows, ends = _continuations(table, ids, end - length, end, matches, depths[query])
            if damaged >= 0:
                return damaged
            if ends.sum() > 0:
                trie = _prefixes(rows, ends)
                sizes[query] = _keep(trie, len(rows), limits[query], tokens[query], parents[query], shares[query])
                break
    return damaged


@compiled
def _continuations(
    table: NDArray[np.int64], ids: NDArray[np.int64], begin: int, end: int, matches: int, depth: int
) -> tuple[int, NDArray[np.int64], NDArray[np.int64]]:
    """What follows the first suffixes of every shard that begin with ids[begin:end]: damaged shard or -1, [n, depth] and [n]."""
    ranks = np.zeros((len(table), 2), dtype=np.int64)
    for shard in range(len(table)):
        first, last = range_of(table, shard, ids, begin, end)
        if first < 0:
            return shard, np.empty((0, depth), dtype=np.int64), np.empty(0, dtype=np.int64)
        ranks[shard, 0], ranks[shard, 1] = first, min(last, first + matches)
    total = (ranks[:, 1] - ranks[:, 0]).sum()
    rows, ends = np.empty((total, depth), dtype=np.int64), np.zeros(total, dtype=np.int64)
    row = 0
    for shard in range(len(table)):
        for rank in range(ranks[shard, 0], ranks[shard, 1]):
            position = suffix_at(table, shard, rank)
            if position < 0:
                return shard, rows, ends
            size = read(table, shard, position + end - begin, rows[row])
            if size < 0:
                return shard, rows, ends
            ends[row] = size
            row += 1
    return -1, rows, ends


@compiled
def _prefixes(rows: NDArray[np.int64], ends: NDArray[np.int64]) -> NDArray[np.int64]:
    """[4, prefixes] the trie of all prefixes of rows[i, :ends[i]], in the order of their first occurrence, with their counts."""
    trie = np.empty((4, ends.sum()), dtype=np.int64)
    bits = 1
    while 1 << bits < 2 * trie.shape[1]:
        bits += 1
    slots = np.full(1 << bits, -1, dtype=np.int64)  # open addressing: (parent, token) -> node
    used = 0
    for row in range(len(rows)):
        parent = -1
        for depth in range(ends[row]):
            token = rows[row, depth]
            mixed = np.uint64(parent + 1) * np.uint64(0xC2B2AE3D27D4EB4F) + np.uint64(token)
            slot = np.int64((mixed * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(64 - bits))
            node = slots[slot]
            while node >= 0 and (trie[_TOKEN, node] != token or trie[_PARENT, node] != parent):
                slot = (slot + 1) & (slots.size - 1)
                node = slots[slot]
            if node < 0:
                node = used
                slots[slot] = node
                trie[_TOKEN, node], trie[_PARENT, node], trie[_DEPTH, node], trie[_COUNT, node] = token, parent, depth + 1, 0
                used += 1
            trie[_COUNT, node] += 1
            parent = node
    return trie[:, :used]


@compiled
def _keep(
    trie: NDArray[np.int64],
    total: int,
    limit: int,
    tokens: NDArray[np.int64],
    parents: NDArray[np.int64],
    shares: NDArray[np.float64],
) -> int:
    """Write the `limit` most frequent prefixes of `total` continuations; among equals the shallower, then the one seen first.

    A parent is never behind its child in this order, so what is kept is a tree. Returns how many there are.
    """
    deepest, most = trie[_DEPTH].max(), trie[_COUNT].max()
    places = (most - trie[_COUNT]) * deepest + trie[_DEPTH] - 1
    having = np.zeros(most * deepest, dtype=np.int64)  # how many prefixes have each place in the order
    for place in places:
        having[place] += 1
    cut, room = 0, limit
    while cut < having.size and having[cut] <= room:
        room -= having[cut]
        cut += 1
    written = np.full(places.size, -1, dtype=np.int64)
    size = 0
    for node in range(places.size):
        if places[node] > cut or (places[node] == cut and room == 0):
            continue
        if places[node] == cut:
            room -= 1
        parent = trie[_PARENT, node]
        tokens[size] = trie[_TOKEN, node]
        parents[size] = written[parent] if parent >= 0 else -1
        shares[size] = trie[_COUNT, node] / (trie[_COUNT, parent] if parent >= 0 else total)
        written[node] = size
        size += 1
    return size
