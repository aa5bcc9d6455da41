"""Check all deterministic draft trees of a step in a single compiled call."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, chain
from typing import Any

import numpy as np

from paceline.core.flat_trees import FlatTrees
from paceline.core.origin import Origin
from paceline.core.tree import EMPTY_TREE, DraftTree, IntArray
from paceline.util.compiled import compiled

_TREES = {DraftTree}
_LISTS = {list}
_INTEGERS = {int}
_ORIGINS = set(Origin) - {Origin.TARGET}


def check_plain_trees(
    trees: Sequence[DraftTree], max_nodes: Sequence[int], vocab: int
) -> FlatTrees | None:
    """Check draft trees, and return them as arrays if they follow the rules.

    The result is None if a tree needs a detailed check. This is the case if the tree breaks a rule,
    is sampled, has nodes that are never accepted (`DraftTree.probes`), or lacks confidences.

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
    drafted = [tree for tree in trees if tree is not EMPTY_TREE]
    if not _TREES.issuperset(map(type, drafted)) or any(
        tree.probs is not None or tree.probes for tree in drafted
    ):
        return None
    token_ids, parents = [tree.token_ids for tree in drafted], [tree.parents for tree in drafted]
    confidence: list[Any] = [tree.confidence for tree in drafted]
    origins = [tree.token_ids if tree.origins is None else tree.origins for tree in drafted]
    if not _LISTS.issuperset(map(type, chain(token_ids, parents, confidence, origins))):
        return None
    sizes = list(map(len, token_ids))
    if any(list(map(len, column)) != sizes for column in (parents, confidence, origins)):
        return None
    flat_ids, flat_parents = list(chain(*token_ids)), list(chain(*parents))
    known = chain.from_iterable(tree.origins for tree in drafted if tree.origins is not None)
    try:
        if not (
            _INTEGERS.issuperset(map(type, flat_ids))
            and _INTEGERS.issuperset(map(type, flat_parents))
            and _ORIGINS.issuperset(known)
        ):
            return None
        return FlatTrees(
            np.array(flat_parents, dtype=np.int64),
            np.array(flat_ids, dtype=np.int64),
            np.array(list(chain(*confidence)), dtype=np.float64),
            np.array([0, *accumulate([len(tree.token_ids) for tree in trees])], dtype=np.int64),
        )
    except (OverflowError, TypeError, ValueError):
        return None


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
