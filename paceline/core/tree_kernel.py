"""Compute the depths and ancestors of draft-tree nodes in compiled code."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from paceline.util.compiled import compiled


@compiled
def fill_shape(
    parents: NDArray[np.int64], depths: NDArray[np.int64], ancestors: NDArray[np.bool_]
) -> None:
    """Compute the depths and the ancestor mask of a draft tree.

    Args:
        parents: Parent of each node, [n]; parents[i] < i, and -1 is the root.
        depths: Output: depth of each node, [n]; 1 for a child of the root.
        ancestors: Output: mask [n, n], initially False. Entry [i, j] becomes True if node j is node
            i or an ancestor of node i.
    """
    for node in range(len(parents)):
        above = parents[node]
        depths[node] = 1
        if above >= 0:
            depths[node] += depths[above]
            for other in range(above + 1):
                ancestors[node, other] = ancestors[above, other]
        ancestors[node, node] = True
