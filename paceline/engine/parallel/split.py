"""Which rank feeds which nodes of a draft tree.

A node can only be computed together with its ancestors, so what a rank feeds is closed under
parents. In depth-first order a run of consecutive nodes needs, besides itself, just the ancestors
of its first node; the runs are cut where the largest share is smallest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from paceline.core.tree import DraftTree, IntArray


@dataclass(frozen=True, slots=True)
class Share:
    """The part of one tree that one rank feeds; its nodes keep their order and their depths.

    Attributes:
        nodes: the m nodes fed, ascending: those owned and all their ancestors.
        parents: m parents, counted within the share; -1 = the root.
        owned: which places of `nodes` are the rank's own to answer for, ascending. Every node has
            one owner.
    """

    nodes: IntArray
    parents: list[int]
    owned: IntArray

    def part(self, tree: DraftTree) -> DraftTree:
        """The tree of this share's nodes, of a tree of guesses."""
        return DraftTree([tree.token_ids[node] for node in self.nodes.tolist()], self.parents)

    def kept(self, path: Sequence[int]) -> list[int]:
        """Places within the share of a path from the root downwards, as far as this rank has fed
        it.
        """
        have = self.nodes.searchsorted(path) if len(path) else ()
        kept: list[int] = []
        for node, place in zip(path, have, strict=True):
            if place == len(self.nodes) or self.nodes[place] != node:
                break
            kept.append(int(place))
        return kept


@lru_cache(maxsize=512)
def share(parents: tuple[int, ...], ranks: int, rank: int) -> Share:
    """The share of `rank` out of `ranks` of the tree with these parents."""
    order, above = _depth_first(parents)
    ends = [0, *_cut(above, ranks)]
    own = order[ends[rank] : ends[rank + 1]]
    fed = set(own)
    node = parents[own[0]] if own else -1
    while node >= 0:
        fed.add(node)
        node = parents[node]
    nodes = sorted(fed)
    place = {node: index for index, node in enumerate(nodes)}
    below = [place[parents[node]] if parents[node] >= 0 else -1 for node in nodes]
    owned = sorted(place[node] for node in own)
    return Share(np.array(nodes, dtype=np.int64), below, np.array(owned, dtype=np.int64))


def _depth_first(parents: tuple[int, ...]) -> tuple[list[int], list[int]]:
    """All nodes in depth-first order, and how many ancestors each of them has."""
    above = [0] * len(parents)
    children: list[list[int]] = [[] for _ in range(len(parents) + 1)]
    for node, parent in enumerate(parents):
        children[parent + 1].append(node)
        above[node] = above[parent] + 1 if parent >= 0 else 0
    order: list[int] = []
    stack = children[0][::-1]
    while stack:
        order.append(stack.pop())
        stack += reversed(children[order[-1] + 1])
    return order, [above[node] for node in order]


def _cut(above: list[int], ranks: int) -> list[int]:
    """Ends of the runs that minimise the largest share; `above` counts each node's ancestors, in
    depth-first order.

    A later start never lets a run end earlier (going on by one node adds at most one ancestor), so
    filling each run up to the cap is optimal, and the smallest cap that suffices is found by
    bisection.
    """
    low, high = max(-(-len(above) // ranks), max(above, default=-1) + 1), len(above)
    while low < high:
        cap = (low + high) // 2
        if _fill(above, ranks, cap)[-1] == len(above):
            high = cap
        else:
            low = cap + 1
    return _fill(above, ranks, high)


def _fill(above: list[int], ranks: int, cap: int) -> list[int]:
    ends: list[int] = []
    start = 0
    for _ in range(ranks):
        start = min(len(above), start + cap - above[start]) if start < len(above) else start
        ends.append(start)
    return ends
