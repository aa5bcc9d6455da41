"""Store the draft trees of a batch in one array, for compiled code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from paceline.core.origin import Origin
from paceline.core.tree import EMPTY_TREE, DraftTree
from paceline.util.compiled import record_dtype


class DraftNode:
    """A node of a draft tree.

    Attributes:
        token: Token id.
        parent: Index of the parent in the tree; -1 if the parent is the root.
        origin: Value of `Origin`.
        confidence: Estimated probability that the node is accepted, given that its parent is.
    """

    token: int
    parent: Annotated[int, np.int32]
    origin: Annotated[int, np.int32]
    confidence: float


DRAFT_NODE = record_dtype(DraftNode)


@dataclass(frozen=True, slots=True, eq=False)
class ArrayTrees:
    """The draft trees of a batch, one per request, with all nodes in one array.

    Attributes:
        nodes: Nodes of all trees, [n]; the dtype has the fields of `DraftNode`.
        begins: Index of the first node of each tree, [batch].
        ends: Index after the last node of each tree, [batch].
    """

    nodes: NDArray[np.void]
    begins: Sequence[int]
    ends: Sequence[int]

    @staticmethod
    def of(trees: Sequence[DraftTree]) -> ArrayTrees:
        """Convert draft trees with confidences to one array of nodes.

        Nodes without an origin are assigned `Origin.DRAFT`.
        """
        token_ids: list[int] = []
        parents: list[int] = []
        confidence: list[float] = []
        origins: list[int] = []
        bounds = [0]
        for tree in trees:
            if tree.token_ids:
                assert tree.confidence is not None, "sources must provide confidences"
                token_ids += tree.token_ids
                parents += tree.parents
                confidence += tree.confidence
                origins += [Origin.DRAFT] * len(tree) if tree.origins is None else tree.origins
            bounds.append(len(token_ids))
        nodes: NDArray[np.void] = np.empty(len(token_ids), dtype=DRAFT_NODE)
        if not token_ids:
            return ArrayTrees(nodes, bounds[:-1], bounds[1:])
        nodes["token"], nodes["parent"] = token_ids, parents
        nodes["confidence"], nodes["origin"] = confidence, origins
        return ArrayTrees(nodes, bounds[:-1], bounds[1:])

    def draft_trees(self) -> list[DraftTree]:
        """Convert the node array back to one `DraftTree` per request."""
        token_ids, parents = self.nodes["token"].tolist(), self.nodes["parent"].tolist()
        confidence, origins = self.nodes["confidence"].tolist(), self.nodes["origin"].tolist()
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
            for begin, end in zip(self.begins, self.ends, strict=True)
        ]
