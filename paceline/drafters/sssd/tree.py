"""Store a growing draft tree as an array of nodes, parents before children.

After the newest tokens "1 2", with 7 and 8 as candidates and 4 after 7:

    node                0 (root)    1     2     3
    token               -           7     4     8
    parent              -           0     1     0
    depth               0           1     2     1
    confidence          1           0.6   0.9   0.3      given the parent
    path_confidence     1           0.6   0.54  0.3      of the whole path, in growing order
"""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np

from paceline.util.compiled import Records, kernel, record_dtype


class TreeNode:
    """Describe a tree node; the fields from `begin` on belong to `fusion=calibrated`."""

    token: int
    parent: int  # 0 = the root
    depth: int
    confidence: float  # given the parent
    path_confidence: float  # of the whole path
    origin: int  # of `Origin`
    begin: int  # its pointers in the pool are [begin, end)
    end: int
    request_size: int  # matches in the request were looked for down to this length
    store_size: int  # matches in the datastore were


class DraftNode:
    """Describe a node of the result, numbered without the root."""

    token: int
    parent: Annotated[int, np.int32]  # -1 = the root
    origin: Annotated[int, np.int32]  # of `Origin`
    confidence: float


TREE_NODE, DRAFT_NODE = record_dtype(TreeNode), record_dtype(DraftNode)


@kernel
def highest(waiting: Any, count: int) -> int:
    """Return the index of the highest `path_confidence` of `count` records."""
    best = 0
    for index in range(1, count):
        if waiting[index].path_confidence > waiting[best].path_confidence:
            best = index
    return best


@kernel
def write_tree(tree: Records[TreeNode], size: int, drafted: Records[DraftNode]) -> None:
    """Write the `size` nodes below the root to the result."""
    for index in range(size):
        node, out = tree[index + 1], drafted[index]
        out.token, out.parent, out.origin, out.confidence = (
            node.token,
            node.parent - 1,
            node.origin,
            node.confidence,
        )
