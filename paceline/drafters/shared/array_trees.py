"""Hold the draft trees of a batch in one array, for compiled code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from paceline.core.origin import Origin
from paceline.core.tree import EMPTY_TREE, DraftTree, IntArray
from paceline.util.compiled import record_dtype


class DraftNode:
    """Describe a node of a draft tree.

    Attributes:
        token: The token.
        parent: Index of the parent in the tree; -1 for the root.
        origin: Value of `Origin`.
        confidence: Probability given the parent.
    """

    token: int
    parent: Annotated[int, np.int32]
    origin: Annotated[int, np.int32]
    confidence: float


DRAFT_NODE = record_dtype(DraftNode)


@dataclass(frozen=True, slots=True, eq=False)
class ArrayTrees:
    """Hold one draft tree per request of a batch.

    Attributes:
        nodes: [n] nodes of all trees; their dtype has the fields of `DraftNode`.
        begins: [batch] first node of each tree.
        ends: [batch] end of the nodes of each tree.
    """

    nodes: NDArray[np.void]
    begins: IntArray
    ends: IntArray

    @staticmethod
    def of(trees: Sequence[DraftTree]) -> ArrayTrees:
        """Convert draft trees with confidences; the default origin is `Origin.DRAFT`."""
        sizes = [len(tree.token_ids) for tree in trees]
        ends = np.cumsum(sizes, dtype=np.int64)
        nodes: NDArray[np.void] = np.empty(sum(sizes), dtype=DRAFT_NODE)
        if nodes.size:
            filled = [tree for tree in trees if tree.token_ids]
            nodes["token"] = list(chain.from_iterable(tree.token_ids for tree in filled))
            nodes["parent"] = list(chain.from_iterable(tree.parents for tree in filled))
            nodes["confidence"] = list(chain.from_iterable(map(_confidence, filled)))
            nodes["origin"] = list(chain.from_iterable(map(_origins, filled)))
        return ArrayTrees(nodes, ends - sizes, ends)

    def draft_trees(self) -> list[DraftTree]:
        """Convert the trees to draft trees."""
        token_ids, parents, confidence, origins = (
            self.nodes[name].tolist() for name in ("token", "parent", "confidence", "origin")
        )
        return [
            DraftTree(
                token_ids[begin:end],
                parents[begin:end],
                None,
                confidence[begin:end],
                origins=origins[begin:end],
            )
            if begin < end
            else EMPTY_TREE
            for begin, end in zip(self.begins.tolist(), self.ends.tolist(), strict=True)
        ]


def _confidence(tree: DraftTree) -> list[float]:
    assert tree.confidence is not None, "sources give confidences"
    return tree.confidence


def _origins(tree: DraftTree) -> Sequence[int]:
    return [Origin.DRAFT] * len(tree) if tree.origins is None else tree.origins
