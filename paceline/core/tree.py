"""Define draft trees, and the arrays from which attention masks are built.

A tree consists of `token_ids` and `parents` (parents[i] < i; -1 is the root, the last committed
token). Everything else is derived from these lists. The module imports numpy only, so drafters do
not need torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from paceline.core.settings import CACHED_TREE_SHAPES

if TYPE_CHECKING:
    from torch import Tensor

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]


# Not frozen, because frozen objects take four times as long to create. Nothing changes a tree.
@dataclass(slots=True, unsafe_hash=True)
class DraftTree:
    """Draft tokens for one request; node -1 is the root, the last committed token.

    Attributes:
        token_ids: Token ids of the n nodes.
        parents: Parent of each node; parents[i] < i, -1 = the root.
        probs: Distribution from which each node was sampled, [vocab], given its ancestors and
            earlier siblings. An entry is None if the node was not sampled; `probs` is None if no
            node was sampled.
        confidence: Estimated probability that each node is accepted, given that its parent is
            accepted.
        probes: Number of nodes at the end (probes) that are never accepted. The target only
            computes the token that follows each probe.
        origins: Source of each node (`Origin`); ignored in comparisons.
        leaf_first: Whether the target verifies sampled nodes from the leaves to the root
            (traversal verification). Acceptance then depends on later nodes, so every step must
            sample with new random numbers. Default False: rejection sampling from the root.
    """

    token_ids: list[int]
    parents: list[int]
    probs: list[Tensor | None] | None = None
    confidence: list[float] | None = None
    probes: int = 0
    origins: Sequence[int] | None = field(default=None, compare=False)
    leaf_first: bool = False

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def num_candidates(self) -> int:
        """Return the number of nodes that may be accepted; these nodes come first."""
        return len(self.token_ids) - self.probes

    def edges(self, count: int | None = None) -> dict[tuple[int, int], int]:
        """Return a mapping from (parent, token) to the node.

        Args:
            count: Number of nodes to map, starting with the first; None means all nodes that may
                be accepted.
        """
        nodes = range(self.num_candidates if count is None else count)
        return dict(zip(zip(self.parents, self.token_ids, strict=True), nodes, strict=False))

    @staticmethod
    def chain(
        token_ids: list[int],
        probs: list[Tensor | None] | None = None,
        confidence: list[float] | None = None,
        origins: Sequence[int] | None = None,
        leaf_first: bool = False,
    ) -> DraftTree:
        """Return a tree without branches: each token's parent is the previous token.

        The arguments are the attributes of the tree; see `DraftTree`.
        """
        parents = list(range(-1, len(token_ids) - 1))
        return DraftTree(token_ids, parents, probs, confidence, 0, origins, leaf_first)

    def is_chain(self) -> bool:
        """Return whether the tree is a chain, in which no node has siblings."""
        return self.parents == list(range(-1, len(self.parents) - 1))

    def children(self) -> list[list[int]]:
        """Return the children of the root (index 0) and of each node i (index i + 1).

        Probes, which are never accepted, are excluded.
        """
        result: list[list[int]] = [[] for _ in range(len(self.parents) + 1)]
        for node, parent in enumerate(self.parents[: self.num_candidates]):
            result[parent + 1].append(node)
        return result

    def child(self, node: int, token: int) -> int | None:
        """Return the child of a node (-1 is the root) that has the given token, or None.

        Probes, which are never accepted, are excluded.
        """
        child = node
        try:
            while True:  # children come after their parent
                child = self.token_ids.index(token, child + 1, self.num_candidates)
                if self.parents[child] == node:
                    return child
        except ValueError:
            return None

    def path(self, node: int) -> list[int]:
        """Return the nodes from a child of the root down to `node`; empty for -1."""
        path: list[int] = []
        while node >= 0:
            path.append(node)
            node = self.parents[node]
        return path[::-1]

    def path_chances(self) -> list[float]:
        """Return, for each node, the probability that the target accepts its path."""
        assert self.confidence is not None, "trees with confidence only"
        chances: list[float] = []
        for parent, confidence in zip(self.parents, self.confidence, strict=True):
            chances.append(confidence * (chances[parent] if parent >= 0 else 1.0))
        return chances

    def best_chain(self) -> DraftTree:
        """Return the path that a target verifies if it cannot verify whole trees.

        If the nodes have confidences, this path has the highest expected number of accepted tokens.
        Otherwise, this path is the first of the deepest paths. Sampled nodes already form a chain,
        so all of them are kept.
        """
        if self.is_chain() and not self.probes:
            return self
        if not self.num_candidates:
            return EMPTY_TREE
        if self.confidence is None:
            node = int(node_depths(self.parents)[: self.num_candidates].argmax())
        else:
            expected: list[float] = []
            for parent, chance in zip(self.parents, self.path_chances(), strict=True):
                expected.append(chance + (expected[parent] if parent >= 0 else 0.0))
            node = max(range(self.num_candidates), key=expected.__getitem__)
        path = self.path(node)
        return DraftTree.chain(
            [self.token_ids[i] for i in path],
            None if self.probs is None else [self.probs[i] for i in path],
            None if self.confidence is None else [self.confidence[i] for i in path],
            None if self.origins is None else [self.origins[i] for i in path],
            leaf_first=self.leaf_first,
        )

    def first(self, count: int) -> DraftTree:
        """Return the tree formed by the first `count` nodes."""
        if count >= len(self):
            return self
        if count <= 0:
            return EMPTY_TREE
        return DraftTree(
            self.token_ids[:count],
            self.parents[:count],
            None if self.probs is None else self.probs[:count],
            None if self.confidence is None else self.confidence[:count],
            max(0, self.probes - (len(self) - count)),
            None if self.origins is None else self.origins[:count],
        )

    def shallower_than(self, depth: int) -> DraftTree:
        """Return the tree formed by the nodes whose depth is less than `depth`."""
        nodes = np.flatnonzero(node_depths(self.parents) < depth).tolist()
        index = {-1: -1, **{node: new for new, node in enumerate(nodes)}}
        return DraftTree(
            [self.token_ids[node] for node in nodes],
            [index[self.parents[node]] for node in nodes],
            None if self.probs is None else [self.probs[node] for node in nodes],
            None if self.confidence is None else [self.confidence[node] for node in nodes],
            sum(node >= self.num_candidates for node in nodes),
            None if self.origins is None else [self.origins[node] for node in nodes],
        )


EMPTY_TREE = DraftTree([], [])


def node_depths(parents: Sequence[int]) -> IntArray:
    """Return the depth of every node, [n]; 1 for a child of the root."""
    return tree_shape(tuple(parents))[0]


@lru_cache(maxsize=CACHED_TREE_SHAPES)
def tree_shape(parents: tuple[int, ...]) -> tuple[IntArray, BoolArray]:
    """Return the depths [n] and the ancestor mask [n, n] of a tree shape.

    Results are cached, because drafters reuse the same shapes.
    """
    count = len(parents)
    if parents == tuple(range(-1, count - 1)):
        mask = np.tri(count, dtype=np.bool_)
        depth = np.arange(1, count + 1, dtype=np.int64)
    else:
        # Imported here: numba takes long to import, and chains do not need it.
        from paceline.core.tree_kernel import fill_shape

        mask, depth = np.zeros((count, count), dtype=np.bool_), np.empty(count, dtype=np.int64)
        fill_shape(np.array(parents, dtype=np.int64), depth, mask)
    mask.setflags(write=False)
    depth.setflags(write=False)
    return depth, mask
