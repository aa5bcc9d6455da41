"""Divide the nodes of a draft tree among ranks.

The nodes are listed in depth-first order, and each rank owns a run of consecutive nodes. A rank
must also compute the ancestors of its nodes. Only ancestors of the run's first node can lie outside
the run. A rank's share consists of the run and these ancestors. The runs are chosen so that the
largest share is as small as possible. For example, let node a have the children b and d, and let b
have the child c:

    a b || c d    shares of 2 and 4 nodes (the second rank also computes a and b)
    a b c || d    shares of 3 and 2 nodes (the second rank also computes a): chosen
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from paceline.core.settings import CACHED_TREE_SHAPES
from paceline.core.tree import DraftTree, IntArray


@dataclass(frozen=True, slots=True)
class Share:
    """The nodes of a draft tree that one rank computes, in tree order.

    Attributes:
        nodes: Nodes that the rank computes, in ascending order: the nodes that the rank owns, and
            all their ancestors.
        parents: Parent of each of these nodes, as an index into `nodes`; -1 means the root.
        owned: Indices into `nodes` of the nodes that the rank owns, in ascending order. Each node
            of the tree is owned by exactly one rank.
    """

    nodes: IntArray
    parents: list[int]
    owned: IntArray

    def part(self, tree: DraftTree) -> DraftTree:
        """Return the draft tree that consists of this share's nodes only.

        Args:
            tree: Whole draft tree; it must not contain sampled nodes.
        """
        return DraftTree([tree.token_ids[node] for node in self.nodes.tolist()], self.parents)

    def path_indices(self, path: Sequence[int]) -> list[int]:
        """Convert a path in the whole tree to indices into `nodes`.

        The result ends before the first node that is not in `nodes`.

        Args:
            path: Nodes in the whole tree, from a child of the root downwards.
        """
        positions = self.nodes.searchsorted(path) if len(path) else ()
        indices: list[int] = []
        for node, index in zip(path, positions, strict=True):
            if index == len(self.nodes) or self.nodes[index] != node:
                break
            indices.append(int(index))
        return indices


@lru_cache(maxsize=CACHED_TREE_SHAPES)
def share(parents: tuple[int, ...], ranks: int, rank: int) -> Share:
    """Return the share of a draft tree's nodes that a given rank computes.

    Args:
        parents: Parents of the nodes in the whole tree.
        ranks: Number of ranks.
        rank: Index of the rank.
    """
    order, num_ancestors = _depth_first(parents)
    ends = [0, *_cut(num_ancestors, ranks)]
    own = order[ends[rank] : ends[rank + 1]]
    computed = set(own)
    node = parents[own[0]] if own else -1
    while node >= 0:
        computed.add(node)
        node = parents[node]
    nodes = sorted(computed)
    index = {node: position for position, node in enumerate(nodes)}
    own_parents = [index[parents[node]] if parents[node] >= 0 else -1 for node in nodes]
    owned = sorted(index[node] for node in own)
    return Share(np.array(nodes, dtype=np.int64), own_parents, np.array(owned, dtype=np.int64))


def _depth_first(parents: tuple[int, ...]) -> tuple[list[int], list[int]]:
    """Return all nodes in depth-first order, and each node's number of ancestors."""
    num_ancestors = [0] * len(parents)
    children: list[list[int]] = [[] for _ in range(len(parents) + 1)]
    for node, parent in enumerate(parents):
        children[parent + 1].append(node)
        num_ancestors[node] = num_ancestors[parent] + 1 if parent >= 0 else 0
    order: list[int] = []
    stack = children[0][::-1]
    while stack:
        order.append(stack.pop())
        stack += reversed(children[order[-1] + 1])
    return order, [num_ancestors[node] for node in order]


def _cut(num_ancestors: list[int], ranks: int) -> list[int]:
    """Divide the nodes into runs so that the largest share is as small as possible.

    A run consists of consecutive nodes. The share of a run consists of the run's nodes and all
    their ancestors.

    Args:
        num_ancestors: Number of ancestors of each node; the nodes are in depth-first order.
        ranks: Number of runs.
    Returns:
        For each run, the index after its last node.
    """
    count = len(num_ancestors)
    # Starting a run later never makes it end earlier, because each additional node adds at most one
    # ancestor. Filling each run up to a cap is therefore optimal, and bisection finds the smallest
    # sufficient cap.
    low, high = max(-(-count // ranks), max(num_ancestors, default=-1) + 1), count
    while low < high:
        cap = (low + high) // 2
        if _fill(num_ancestors, ranks, cap)[-1] == count:
            high = cap
        else:
            low = cap + 1
    return _fill(num_ancestors, ranks, high)


def _fill(num_ancestors: list[int], ranks: int, cap: int) -> list[int]:
    ends: list[int] = []
    start, count = 0, len(num_ancestors)
    for _ in range(ranks):
        start = min(count, start + cap - num_ancestors[start]) if start < count else start
        ends.append(start)
    return ends
