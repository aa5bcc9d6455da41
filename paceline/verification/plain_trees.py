"""Check all deterministic draft trees of a step in one compiled call."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from paceline.core.flat_trees import FlatTrees
from paceline.core.origin import Origin
from paceline.core.tree import EMPTY_TREE, DraftTree, IntArray
from paceline.util.compiled import compiled

_INTEGERS = {int}
_ORIGINS = set(Origin) - {Origin.TARGET}


def check_plain_trees(
    trees: Sequence[DraftTree], max_nodes: Sequence[int], vocab: int
) -> FlatTrees | None:
    """Return trees as arrays, or None if they need a detailed check.

    A tree needs a detailed check if it breaks a rule, is sampled, has probes, or has no
    confidences.

    Args:
        trees: Proposed trees.
        max_nodes: Maximum number of nodes for each request.
        vocab: Vocabulary size of the target.
    """
    flat = _flatten(trees)
    if flat is not None and _follow_rules(
        flat.parents, flat.token_ids, flat.starts, np.array(max_nodes, dtype=np.int64), vocab
    ):
        return flat
    return None


def _flatten(trees: Sequence[DraftTree]) -> FlatTrees | None:
    token_ids: list[int] = []
    parents: list[int] = []
    confidence: list[float] = []
    origins: list[int] = []
    starts = [0]
    for tree in trees:
        if tree is not EMPTY_TREE:
            if type(tree) is not DraftTree or tree.probs is not None or tree.probes:
                return None
            columns = tree.token_ids, tree.parents, tree.confidence
            if not all(type(column) is list for column in columns):
                return None
            count = len(tree.token_ids)
            if not len(tree.parents) == len(tree.confidence or ()) == count:
                return None
            token_ids += tree.token_ids
            parents += tree.parents
            confidence += tree.confidence or ()
            if tree.origins is not None:
                if type(tree.origins) is not list or len(tree.origins) != count:
                    return None
                origins += tree.origins
        starts.append(len(token_ids))
    try:
        if not (
            _INTEGERS.issuperset(map(type, token_ids))
            and _INTEGERS.issuperset(map(type, parents))
            and _ORIGINS.issuperset(origins)
        ):
            return None
        numbers = np.array([parents, token_ids], dtype=np.int64)
        arrays = np.array(confidence, dtype=np.float64), np.array(starts, dtype=np.int64)
    except (OverflowError, TypeError, ValueError):
        return None
    return FlatTrees(numbers[0], numbers[1], *arrays)


@compiled
def _follow_rules(
    parents: IntArray, token_ids: IntArray, starts: IntArray, max_nodes: IntArray, vocab: int
) -> bool:
    for tree in range(len(max_nodes)):
        first, end = starts[tree], starts[tree + 1]
        if end - first > max_nodes[tree]:
            return False
        for node in range(first, end):
            parent, token = parents[node], token_ids[node]
            if parent < -1 or parent >= node - first or token < 0 or token >= vocab:
                return False
            for sibling in range(first, node):
                if parents[sibling] == parent and token_ids[sibling] == token:
                    return False
    return True
