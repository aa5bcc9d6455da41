"""Store a growing draft tree as an array of nodes, parents before children.

For example, 7 and 8 are the candidates after the newest tokens "1 2", and 4 follows 7:

    node            == 0 (root)    1     2     3
    token           == -           7     4     8
    parent          == -           0     1     0
    depth           == 0           1     2     1
    confidence      == 1           0.6   0.9   0.3      given the parent
    path_confidence == 1           0.6   0.54  0.3      of the whole path
"""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np

from paceline.drafters.shared.array_trees import DraftNode
from paceline.util.compiled import Records, kernel, record_dtype


class TreeNode:
    """A node of the growing draft tree.

    Only `fusion=calibrated` uses the fields from `begin` onwards.

    Attributes:
        token: Token id.
        parent: Index of the parent; 0 for the root.
        depth: Depth of the node; 0 for the root.
        confidence: Acceptance probability, given that the parent is accepted.
        path_confidence: Acceptance probability of the whole path.
        origin: Source of the token, as a value of `Origin`.
        begin: Index in `Pool.pointers` of the node's first match (earlier occurrence in a text).
        end: Index after the node's last match.
        request_size: Shortest match length that was searched in the request.
        store_size: Shortest match length that was searched in the datastore.
    """

    token: int
    parent: int
    depth: int
    confidence: float
    path_confidence: float
    origin: int
    begin: int
    end: int
    request_size: int
    store_size: int


TREE_NODE = record_dtype(TreeNode)


class Child:
    """A candidate token, which may become a node of the tree.

    Attributes:
        parent: Index of the parent in the tree; 0 for the root.
        origin: Source of the token, as a value of `Origin`.
        token: Token id.
        confidence: Acceptance probability, given that the parent is accepted.
        path_confidence: Acceptance probability of the whole path.
    """

    parent: Annotated[int, np.int32]
    origin: Annotated[int, np.int32]
    token: int
    confidence: float
    path_confidence: float


CHILD = record_dtype(Child)


@kernel
def highest(waiting: Any, count: int) -> int:
    """Return the index of the candidate with the highest path confidence.

    Args:
        waiting: Candidates.
        count: Number of candidates to compare, starting with the first.
    """
    best = 0
    for index in range(1, count):
        if waiting[index].path_confidence > waiting[best].path_confidence:
            best = index
    return best


@kernel
def write_tree(tree: Records[TreeNode], size: int, drafted: Records[DraftNode]) -> None:
    """Write all nodes below the root to an array of draft nodes.

    Args:
        tree: Root and nodes of the tree.
        size: Number of nodes, excluding the root.
        drafted: Output: draft nodes, [size]; the parent index -1 means the root.
    """
    for index in range(size):
        node, out = tree[index + 1], drafted[index]
        out.token, out.parent, out.origin, out.confidence = (
            node.token,
            node.parent - 1,
            node.origin,
            node.confidence,
        )
