"""Concatenate a step's draft trees into arrays, for compiled code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from paceline.core.tree import DraftTree, IntArray

Floats = npt.NDArray[np.float64]


class FlatTrees(NamedTuple):
    """A step's draft trees, concatenated.

    Attributes:
        parents: Index of each node's parent in the node's own tree, [nodes]; -1 is the root.
        token_ids: Token ids, [nodes].
        confidence: The drafter's estimate of the probability that the node is accepted, given that
            its parent is accepted, [nodes].
        starts: Index of each tree's first node, followed by the total number of nodes, [1 + trees].
    """

    parents: IntArray
    token_ids: IntArray
    confidence: Floats
    starts: IntArray


def flatten_trees(trees: Sequence[DraftTree], unknown: float | None = None) -> FlatTrees:
    """Concatenate trees into the arrays that the acceptance calibration reads.

    Args:
        trees: Draft trees.
        unknown: Confidence assigned to nodes in trees without confidences; None if all trees have
            confidences.
    """
    parents: list[int] = []
    token_ids: list[int] = []
    confidence: list[float] = []
    starts = [0]
    for tree in trees:
        parents += tree.parents
        token_ids += tree.token_ids
        confidence += tree.confidence or ([] if unknown is None else [unknown] * len(tree))
        starts.append(len(parents))
    return FlatTrees(
        np.array(parents, dtype=np.int64),
        np.array(token_ids, dtype=np.int64),
        np.array(confidence, dtype=np.float64),
        np.array(starts, dtype=np.int64),
    )
