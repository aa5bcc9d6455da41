"""Build draft trees from the most frequent continuations in a datastore.

A continuation consists of the tokens that follow an occurrence of the query in the datastore. The
prefixes of all continuations form a trie, stored as an array of nodes in order of first occurrence.
Parents therefore precede children. For example, the continuations (3 4), (3 5) and (6) yield:

    node           0   1   2   3
    token          3   4   5   6
    parent        -1   0   0  -1
    depth          1   2   2   1
    occurrences    2   1   1   1

The most frequent prefixes form the draft tree. With a limit of three nodes, the tree contains the
prefixes (3), (6) and (3 4). Among equally frequent prefixes, shallower ones come first, then
earlier ones.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from paceline.datastore.rows import ShardRow
from paceline.datastore.search import Ranges, find, range_of, read, suffix_at
from paceline.util.compiled import Records, compiled, record_dtype


class TrieNode:
    """A trie node, which represents a prefix of one or more continuations.

    Attributes:
        token: Last token of the prefix.
        parent: Node of the prefix without its last token; -1 for a prefix of one token.
        depth: Number of tokens in the prefix.
        occurrences: Number of continuations that begin with the prefix.
    """

    token: int
    parent: int
    depth: int
    occurrences: int


TRIE_NODE = record_dtype(TrieNode)


class Queries(NamedTuple):
    """A batch of datastore queries, one per request, with limits on the draft trees.

    Attributes:
        ids: Tokens of all queries, [total]; query b is ids[offsets[b]:offsets[b + 1]].
        offsets: Offsets of the queries in `ids`, [batch + 1].
        depths: For each query, the maximum number of tokens in a continuation, [batch].
        limits: For each query, the maximum number of nodes in its draft tree, [batch].
    """

    ids: NDArray[np.int64]
    offsets: NDArray[np.int64]
    depths: NDArray[np.int64]
    limits: NDArray[np.int64]


class SuffixSearch(NamedTuple):
    """Limits on the query suffixes to search for, and on the matches to read.

    Attributes:
        min_ngram: Minimum length of a suffix, in tokens.
        max_ngram: Maximum length of a suffix, in tokens.
        max_matches: Maximum number of matches read per shard. The first matches in the suffix array
            are read.
    """

    min_ngram: int
    max_ngram: int
    max_matches: int


class Trees(NamedTuple):
    """The draft trees of a batch, as arrays that `draft` fills.

    Attributes:
        tokens: Token ids, [batch, nodes].
        parents: Index of each node's parent, [batch, nodes]; -1 for children of the root.
        shares: Number of continuations that contain the node, divided by the number that contain
            the node's parent, [batch, nodes].
        sizes: Number of nodes in each tree, [batch]; 0 if the search found nothing.
    """

    tokens: NDArray[np.int64]
    parents: NDArray[np.int64]
    shares: NDArray[np.float64]
    sizes: NDArray[np.int64]


@compiled
def draft(table: Records[ShardRow], queries: Queries, search: SuffixSearch, trees: Trees) -> int:
    """Draft one tree per query from the datastore.

    A tree merges the continuations of the query's longest suffix that occurs in the datastore.

    Args:
        table: Shards of the datastore. The caller must keep the shards' memory alive.
        queries: Tokens, offsets and limits of all queries.
        search: Suffix lengths and maximum number of matches.
        trees: Output arrays to fill.
    Returns:
        -1, or the index of a damaged shard, in which case the output is incomplete.
    """
    ids, offsets, depths, limits = queries
    shortest, longest, matches = search
    tokens, parents, shares, sizes = trees
    sizes[:] = 0
    low = np.empty((sizes.size, longest, len(table)), dtype=np.int64)
    lengths = np.empty((sizes.size, 2), dtype=np.int64)
    damaged = find(table, ids, offsets, shortest, 1, Ranges(low, np.empty_like(low), lengths))
    for query in range(sizes.size if damaged < 0 else 0):
        end = offsets[query + 1]
        for length in range(lengths[query, 0], shortest - 1, -1):
            if min(depths[query], limits[query]) < 1:
                break
            damaged, rows, ends = _continuations(
                table, ids, end - length, end, matches, depths[query]
            )
            if damaged >= 0:
                return damaged
            if ends.sum() > 0:
                trie = _prefixes(rows, ends)
                sizes[query] = _keep(
                    trie, len(rows), limits[query], tokens[query], parents[query], shares[query]
                )
                break
    return damaged


@compiled
def _continuations(
    table: Records[ShardRow], ids: NDArray[np.int64], begin: int, end: int, matches: int, depth: int
) -> tuple[int, NDArray[np.int64], NDArray[np.int64]]:
    """Read the tokens after the first matches of ids[begin:end] in every shard.

    Args:
        table: Shards of the datastore.
        ids: Tokens of all queries.
        begin: Start of the suffix in `ids`.
        end: End of the suffix in `ids` (exclusive).
        matches: Maximum number of matches read per shard.
        depth: Maximum number of tokens in a continuation.
    Returns:
        Three values: -1 or the index of a damaged shard; the tokens of the n continuations,
        [n, depth]; the number of tokens in each row, [n].
    """
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
def _prefixes(rows: NDArray[np.int64], ends: NDArray[np.int64]) -> NDArray[np.void]:
    """Return the trie of all prefixes of the token sequences rows[i, :ends[i]].

    Args:
        rows: Tokens of the continuations, [n, depth].
        ends: Number of tokens in each row, [n].
    Returns:
        Trie nodes, parents before children; the dtype has the fields of `TrieNode`.
    """
    trie: NDArray[np.void] = np.empty(ends.sum(), dtype=TRIE_NODE)
    bits = 1
    while 1 << bits < 2 * trie.size:
        bits += 1
    # A hash table with open addressing, which maps (parent, token) to a node.
    slots = np.full(1 << bits, -1, dtype=np.int64)
    used = 0
    for row in range(len(rows)):
        parent = -1
        for depth in range(ends[row]):
            token = rows[row, depth]
            mixed = np.uint64(parent + 1) * np.uint64(0xC2B2AE3D27D4EB4F) + np.uint64(token)
            slot = np.int64((mixed * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(64 - bits))
            node = slots[slot]
            while node >= 0 and (trie[node].token != token or trie[node].parent != parent):
                slot = (slot + 1) & (slots.size - 1)
                node = slots[slot]
            if node < 0:
                node = used
                slots[slot] = node
                new = trie[node]
                new.token, new.parent, new.depth, new.occurrences = token, parent, depth + 1, 0
                used += 1
            trie[node].occurrences += 1
            parent = node
    return trie[:used]


@compiled
def _keep(
    trie: NDArray[np.void],
    total: int,
    limit: int,
    tokens: NDArray[np.int64],
    parents: NDArray[np.int64],
    shares: NDArray[np.float64],
) -> int:
    """Write the `limit` most frequent prefixes to arrays; return the number written.

    Among equally frequent prefixes, shallower ones come first, then earlier ones. In this order,
    parents precede children, so the result is a tree.

    Args:
        trie: Trie of all prefixes.
        total: Number of continuations.
        limit: Maximum number of nodes in the draft tree.
        tokens: Output: token ids.
        parents: Output: index of each node's parent; -1 for children of the root.
        shares: Output: each node's number of occurrences divided by that of its parent.
    """
    deepest, max_occurrences = 0, 0
    for node in range(len(trie)):
        deepest = max(deepest, trie[node].depth)
        max_occurrences = max(max_occurrences, trie[node].occurrences)
    # A counting sort by rank: fewer occurrences and greater depth have a higher rank.
    ranks = np.empty(len(trie), dtype=np.int64)
    counts = np.zeros(max_occurrences * deepest, dtype=np.int64)
    for node in range(len(trie)):
        ranks[node] = (max_occurrences - trie[node].occurrences) * deepest + trie[node].depth - 1
        counts[ranks[node]] += 1
    cut, room = 0, limit
    while cut < counts.size and counts[cut] <= room:
        room -= counts[cut]
        cut += 1
    written = np.full(ranks.size, -1, dtype=np.int64)
    size = 0
    for node in range(ranks.size):
        if ranks[node] > cut or (ranks[node] == cut and room == 0):
            continue
        if ranks[node] == cut:
            room -= 1
        parent = trie[node].parent
        tokens[size] = trie[node].token
        parents[size] = written[parent] if parent >= 0 else -1
        shares[size] = trie[node].occurrences / (trie[parent].occurrences if parent >= 0 else total)
        written[node] = size
        size += 1
    return size
