"""Find the number of draft nodes that maximises tokens per second.

Without drafts, a step produces one token per request. Each draft node adds its gain to the expected
number of tokens, but also makes the step longer. The gain is the probability that the target
accepts the path to the node. Nodes are sorted by decreasing gain.
"""

from __future__ import annotations

import numpy as np

from paceline.core.tree import IntArray
from paceline.draft_budget.acceptance_calibration import Floats


def best_count(tokens: Floats, seconds: Floats) -> int:
    """Return the number of nodes that yields the most tokens per second.

    Args:
        tokens: Expected number of tokens from a step with 0, 1, 2, ... nodes.
        seconds: Duration of a step with 0, 1, 2, ... nodes.
    """
    return int((tokens / seconds).argmax())


def tree_of_nodes(starts: IntArray) -> IntArray:
    """Return the index of each node's tree; see `FlatTrees.starts`."""
    return np.repeat(np.arange(len(starts) - 1), np.diff(starts))


def nodes_per_tree(trees: IntArray, nodes: IntArray, num_trees: int) -> list[int]:
    """Count the chosen nodes in each tree.

    Args:
        trees: Index of each node's tree.
        nodes: Indices of the chosen nodes.
        num_trees: Number of trees.
    """
    lengths: list[int] = np.bincount(trees[nodes], minlength=num_trees).tolist()
    return lengths
