"""Derive depths and ancestors of a draft tree in compiled code."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from paceline.util.compiled import compiled


@compiled
def fill_shape(
    parents: NDArray[np.int64], depths: NDArray[np.int64], ancestors: NDArray[np.bool_]
) -> None:
    """Fill the depths and the ancestor mask of a tree shape.

    Args:
        parents: [n] parent of each node; parents[i] < i, -1 = the root.
        depths: [n] depth of each node, filled; 1 for a child of the root.
        ancestors: [n, n] of False, set to True where node j is node i or its ancestor.
    """
    for node in range(len(parents)):
        above = parents[node]
        depths[node] = 1
        if above >= 0:
            depths[node] += depths[above]
            for other in range(above + 1):
                ancestors[node, other] = ancestors[above, other]
        ancestors[node, node] = True
