"""Find how many draft nodes yield the most tokens per second, in sorted order.

A step yields one token per request and, per draft node, its gain: the probability that the target
accepts the path to it. A step takes longer with every node. Nodes come in order of falling gain.
"""

from __future__ import annotations

import numpy as np

from paceline.core.tree import IntArray
from paceline.draft_budget.acceptance_calibration import Floats


def best_count(tokens: Floats, seconds: Floats) -> int:
    """Return the number of nodes with the most tokens per second.

    Args:
        tokens: Expected tokens of a step by its number of nodes, from 0.
        seconds: Time of the step by its number of nodes, from 0.
    """
    return int((tokens / seconds).argmax())


def tree_of_nodes(starts: IntArray) -> IntArray:
    """Return the tree of each node; see `FlatTrees.starts`."""
    return np.repeat(np.arange(len(starts) - 1), np.diff(starts))


def nodes_per_tree(trees: IntArray, nodes: IntArray, num_trees: int) -> list[int]:
    """Return how many of `nodes` belong to each tree.

    Args:
        trees: Tree of each node.
        nodes: Chosen nodes.
        num_trees: Number of trees.
    """
    lengths: list[int] = np.bincount(trees[nodes], minlength=num_trees).tolist()
    return lengths
