"""Check proposed trees against the rules of `propose` (`paceline.core.drafter`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING

from paceline.core.drafter import Drafter
from paceline.core.request import Request
from paceline.core.tree import EMPTY_TREE, DraftTree
from paceline.errors import DrafterError

if TYPE_CHECKING:
    from paceline.core.flat_trees import FlatTrees

    Check = Callable[[Sequence[DraftTree], Sequence[int], int], FlatTrees | None]


def check_trees(
    drafter: Drafter,
    requests: Sequence[Request],
    max_nodes: list[int],
    trees: list[DraftTree],
    vocab: int,
) -> FlatTrees | None:
    """Check that trees contain valid token ids, and follow rules 1 and 2 of `propose`.

    Rule 1 limits the number of trees and nodes. Rule 2 requires that parents precede their
    children, and that siblings have different tokens.

    Args:
        drafter: Drafter that proposed the trees.
        requests: Requests for which the trees were proposed.
        max_nodes: Maximum number of nodes for each request.
        trees: Proposed trees.
        vocab: Vocabulary size of the target.
    Returns:
        The trees as arrays; None if all trees are empty, or if a tree is sampled, has nodes that
        are never accepted (`DraftTree.probes`), or lacks confidences.
    Raises:
        DrafterError: A tree breaks a rule. The message names the drafter, the request and the
            rule.
    """
    if type(trees) is list and len(trees) == len(requests):
        if all(tree is EMPTY_TREE for tree in trees):
            return None
        if (flat := _compiled_check()(trees, max_nodes, vocab)) is not None:
            return flat
    from paceline.verification.broken_trees import broken_list, broken_tree

    broken = broken_list(trees, len(requests))
    for request, tree, limit in zip(requests, () if broken else trees, max_nodes, strict=False):
        if (problem := broken_tree(tree, limit, vocab)) is not None:
            broken = problem.format(request=f"request {request.id}")
            break
    if broken is not None:
        raise DrafterError(f"drafter {drafter.name!r} {broken}")
    return None


@cache
def _compiled_check() -> Check:
    # Importing numba takes long, and plain decoding does not need it.
    from paceline.verification.plain_trees import check_plain_trees

    return check_plain_trees
