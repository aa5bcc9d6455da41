"""Find the number of draft nodes that maximises tokens per second.

Without drafts, a step produces one token per request. Each draft node adds its gain to the
expected number of tokens, but also lengthens the step. The gain is the probability that the target
accepts the path to the node. Nodes are sorted by decreasing gain. For example, take one request
and two nodes with the gains 0.8 and 0.3:

- 0 nodes: 1.0 tokens in 10 ms, so 100 tokens per second.
- 1 node: 1.8 tokens in 11 ms, so 164 tokens per second (the maximum).
- 2 nodes: 2.1 tokens in 13 ms, so 162 tokens per second.
"""

from __future__ import annotations

import numpy as np

from paceline.core.flat_trees import Floats
from paceline.core.tree import IntArray
from paceline.util.compiled import compiled


def best_count(gains: Floats, seconds: Floats, min_count: int = 0) -> int:
    """Return the number of draft nodes that yields the most tokens per second.

    Args:
        gains: First, the expected number of tokens from a step without nodes. Then, for each node,
            the expected number of tokens that the node adds.
        seconds: Duration of a step with 0, 1, 2, ... nodes, in seconds.
        min_count: Smallest number of nodes to consider; default 0.
    """
    if len(gains) != len(seconds):
        raise ValueError(
            f"got {len(gains)} gains and {len(seconds)} durations; expected as many durations"
            " as gains."
        )
    return int(_best_count(gains, seconds, min_count))


@compiled
def _best_count(gains: Floats, seconds: Floats, min_count: int) -> int:
    best, best_rate, tokens = min_count, -np.inf, 0.0
    for count in range(len(gains)):
        tokens += gains[count]
        rate = tokens / seconds[count]
        if count >= min_count and rate > best_rate:
            best, best_rate = count, rate
    return best


@compiled
def step_seconds(by_curve: Floats, plain_s: float, factor: float, margin: float) -> Floats:
    """Return the duration of a step with 0, 1, ... units of draft nodes.

    In a ragged batch, a unit is one node. In a padded batch, a unit is one node of every tree.

    Args:
        by_curve: Duration of a step with 0, 1, ... units, in seconds, according to the cost curve.
        plain_s: Duration of a plain decoding step, in seconds.
        factor: Correction factor for steps with drafts (`CostCorrection.factor`).
        margin: Factor by which the durations of steps with drafts are multiplied, so that the draft
            budget ignores small gains (`DraftBudgetSettings.gain_margin`).
    """
    result = np.empty(len(by_curve))
    for units in range(len(by_curve)):
        seconds = plain_s + min(1.0, factor) * (by_curve[units] - by_curve[0])
        result[units] = seconds * (margin * max(1.0, factor)) if units else seconds
    return result


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
