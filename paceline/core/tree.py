"""Draft trees: the guesses of one step, as two flat lists, and the arrays a model's mask is made
of.

A tree is `token_ids` and `parents` (parents[i] < i; -1 is the root, the last committed token).
Everything else is derived. Imports numpy only, so drafters can be written and tested without torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from paceline.core.origin import Origin

if TYPE_CHECKING:
    from torch import Tensor

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class DraftTree:
    """Guessed continuations of one sequence. Node -1 is the root: the last committed token.

    Attributes:
        token_ids: n token ids.
        parents: n indices; parents[i] < i, -1 = child of the root.
        probs: per node the distribution [vocab] it was drawn from, given its ancestors and earlier
            siblings; None = a guess. A tree whose `probs` is None holds guesses only.
        confidence: per node the estimated chance that it is accepted, given that its parent is.
        probes: the last `probes` nodes are fed only to learn what the target says after them; they
            are never accepted.
        origins: per node where the guess came from (`Origin`). Trees that guess the same are equal,
            whatever they say here.
    """

    token_ids: list[int]
    parents: list[int]
    probs: list[Tensor | None] | None = None
    confidence: list[float] | None = None
    probes: int = 0
    origins: Sequence[int] | None = field(default=None, compare=False)

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def num_candidates(self) -> int:
        """How many nodes, from the first on, may be accepted."""
        return len(self.token_ids) - self.probes

    def edges(self, count: int | None = None) -> dict[tuple[int, int], int]:
        """(parent, token) -> node, of the first `count` nodes; default: of the candidates."""
        nodes = range(self.num_candidates if count is None else count)
        return dict(zip(zip(self.parents, self.token_ids, strict=True), nodes, strict=False))

    @staticmethod
    def chain(
        token_ids: list[int],
        probs: list[Tensor | None] | None = None,
        confidence: list[float] | None = None,
        origins: Sequence[int] | None = None,
    ) -> DraftTree:
        """A tree without branches: each token is the child of the one before it."""
        return DraftTree(
            token_ids, list(range(-1, len(token_ids) - 1)), probs, confidence, origins=origins
        )

    def is_chain(self) -> bool:
        """Whether no node has a sibling."""
        return self.parents == list(range(-1, len(self.parents) - 1))

    def children(self) -> list[list[int]]:
        """Candidates below the root (index 0) and below every node i (index i + 1), each list in
        node order.
        """
        result: list[list[int]] = [[] for _ in range(len(self.parents) + 1)]
        for node, parent in enumerate(self.parents[: self.num_candidates]):
            result[parent + 1].append(node)
        return result

    def path(self, node: int) -> list[int]:
        """The nodes from below the root down to `node`; none for the root (-1)."""
        path: list[int] = []
        while node >= 0:
            path.append(node)
            node = self.parents[node]
        return path[::-1]

    def path_chances(self) -> list[float]:
        """Per node the chance that it and all nodes above it are accepted, by the tree's
        confidence, which it must have.
        """
        assert self.confidence is not None
        chances: list[float] = []
        for parent, confidence in zip(self.parents, self.confidence, strict=True):
            chances.append(confidence * (chances[parent] if parent >= 0 else 1.0))
        return chances

    def best_chain(self) -> DraftTree:
        """The single branch to keep where only a chain can be verified.

        With `confidence`: the path on which most tokens are expected to be accepted; else the
        deepest, the first one on ties. Drawn nodes form chains already, so no drawn node is lost by
        it.
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
        )

    def first(self, count: int) -> DraftTree:
        """The first `count` nodes, which are a tree as well: parents come first."""
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
        """The nodes less deep than `depth`."""
        kept = np.flatnonzero(node_depths(self.parents) < depth).tolist()
        place = {-1: -1, **{node: new for new, node in enumerate(kept)}}
        return DraftTree(
            [self.token_ids[node] for node in kept],
            [place[self.parents[node]] for node in kept],
            None if self.probs is None else [self.probs[node] for node in kept],
            None if self.confidence is None else [self.confidence[node] for node in kept],
            sum(node >= self.num_candidates for node in kept),
            None if self.origins is None else [self.origins[node] for node in kept],
        )


EMPTY_TREE = DraftTree([], [])


class TreeBuilder:
    """Merges branches that share a prefix into one tree, never exceeding `max_nodes`. Probes
    come after all else.
    """

    def __init__(self, max_nodes: int) -> None:
        self.max_nodes = max_nodes
        self.token_ids: list[int] = []
        self.parents: list[int] = []
        self.origins: list[int] = []
        self._child: dict[tuple[int, int], int] = {}
        self._probes = 0

    def __len__(self) -> int:
        return len(self.token_ids)

    def __contains__(self, edge: tuple[int, int]) -> bool:
        """Whether there is a candidate (parent, token)."""
        return edge in self._child

    def add(self, token: int, parent: int, origin: Origin = Origin.DRAFT) -> int:
        """Add one node, or find it; `parent` where there is no room."""
        return self.add_path((token,), parent, origin)

    def add_probe(self, token: int, parent: int, origin: Origin = Origin.DRAFT) -> int:
        """Add a node that is fed and never accepted; it may repeat a sibling. The caller sees to
        `max_nodes`.
        """
        self.token_ids.append(token)
        self.parents.append(parent)
        self.origins.append(origin)
        self._probes += 1
        return len(self.token_ids) - 1

    def add_path(
        self, token_ids: Sequence[int], parent: int = -1, origin: Origin = Origin.DRAFT
    ) -> int:
        """Add a branch below `parent`, reusing the nodes it shares; returns its last node that
        fitted.

        Args:
            origin: of the nodes that are new.
        """
        for token in token_ids:
            node = self._child.get((parent, token))
            if node is None:
                if len(self.token_ids) >= self.max_nodes:
                    break
                node = len(self.token_ids)
                self._child[parent, token] = node
                self.token_ids.append(token)
                self.parents.append(parent)
                self.origins.append(origin)
            parent = node
        return parent

    def build(self) -> DraftTree:
        """The tree so far."""
        return DraftTree(self.token_ids, self.parents, probes=self._probes, origins=self.origins)


def node_depths(parents: Sequence[int]) -> IntArray:
    """Depth of every node, 1 for a child of the root. Shape [n]."""
    return tree_shape(tuple(parents))[0]


def ancestor_mask(parents: Sequence[int]) -> BoolArray:
    """[n, n]: entry (i, j) is True where j is i itself or one of its ancestors."""
    return tree_shape(tuple(parents))[1]


@lru_cache(maxsize=512)
def tree_shape(parents: tuple[int, ...]) -> tuple[IntArray, BoolArray]:
    """Depths [n] and ancestor mask [n, n] of a tree shape; kept, since drafters repeat their
    shapes.

    Climbs from all nodes to their parents at once, so the Python loop runs over levels, not nodes.
    """
    count = len(parents)
    mask = np.eye(count, dtype=np.bool_)
    depth = np.ones(count, dtype=np.int64)
    if parents == tuple(range(-1, count - 1)):
        mask = np.tri(count, dtype=np.bool_)
        depth = np.arange(1, count + 1, dtype=np.int64)
    else:
        above = np.asarray(parents, dtype=np.int64)
        ancestor = above.copy()
        nodes = np.flatnonzero(ancestor >= 0)
        while nodes.size:
            mask[nodes, ancestor[nodes]] = True
            depth[nodes] += 1
            ancestor[nodes] = above[ancestor[nodes]]
            nodes = nodes[ancestor[nodes] >= 0]
    mask.setflags(write=False)
    depth.setflags(write=False)
    return depth, mask
