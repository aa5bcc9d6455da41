"""Trees that may be cut before they are fed: the likeliest paths first; and what the text made of a tree, fed whole or not."""

from __future__ import annotations

from collections.abc import Sequence as ListLike
from dataclasses import replace

from paceline.engine.drafter import Outcome
from paceline.engine.tree import DraftTree


def likeliest_first(tree: DraftTree) -> tuple[DraftTree, list[int]]:
    """Return a tree of guesses with the likeliest paths first, and per node which one of `tree` it was.

    Args:
        tree: guesses with confidence, none above 1, so that no node is likelier than its parent.
    """
    assert tree.confidence is not None
    assert tree.probs is None
    assert not tree.probes
    chances: list[float] = []
    for parent, confidence in zip(tree.parents, tree.confidence, strict=True):
        chances.append(confidence * (chances[parent] if parent >= 0 else 1.0))
    before = sorted(range(len(tree)), key=lambda node: -chances[node])  # stable: of equals the parent comes first
    if before == list(range(len(tree))):
        return tree, before
    place = {-1: -1} | {node: at for at, node in enumerate(before)}
    return DraftTree(
        [tree.token_ids[node] for node in before],
        [place[tree.parents[node]] for node in before],
        confidence=[tree.confidence[node] for node in before],
        origins=None if tree.origins is None else [tree.origins[node] for node in before],
    ), before  # fmt: skip


def outcome_of(tree: DraftTree, outcome: Outcome) -> Outcome:
    """Return what the text that was said makes of a tree of which the target may have seen another part, or nothing.

    The target's choices behind its nodes stay those of the tree that was fed.
    """
    if tree is outcome.tree:
        return outcome
    return replace(outcome, tree=tree, accepted=_said(tree, outcome.new_token_ids))


def _said(tree: DraftTree, token_ids: ListLike[int]) -> list[int]:
    children, node, path = tree.edges(), -1, []
    for token in token_ids:
        following = children.get((node, token))
        if following is None:
            break
        node = following
        path.append(node)
    return path
