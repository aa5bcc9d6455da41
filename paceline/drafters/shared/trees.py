"""Sort draft trees by probability, and adapt outcomes to trees that were cut."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from paceline.core.drafter import Outcome
from paceline.core.tree import DraftTree
from paceline.verification.rules import follow


def likeliest_first(tree: DraftTree) -> tuple[DraftTree, list[int]]:
    """Sort a tree by path probability; also return the original index of each node.

    Args:
        tree: Deterministic draft with confidences of at most 1, so that no node is more likely
            than its parent.
    """
    assert tree.confidence is not None
    assert tree.probs is None
    assert not tree.probes
    chances = tree.path_chances()
    # The sort is stable, so a parent precedes a child of equal probability.
    before = sorted(range(len(tree)), key=lambda node: -chances[node])
    if before == list(range(len(tree))):
        return tree, before
    position_of = {-1: -1} | {node: position for position, node in enumerate(before)}
    return DraftTree(
        [tree.token_ids[node] for node in before],
        [position_of[tree.parents[node]] for node in before],
        confidence=[tree.confidence[node] for node in before],
        origins=None if tree.origins is None else [tree.origins[node] for node in before],
    ), before


def outcome_of(tree: DraftTree, outcome: Outcome) -> Outcome:
    """Convert the outcome of a verified tree to an outcome for a different tree.

    The new tokens determine which nodes of `tree` count as accepted. The target's predictions
    remain those of the verified tree.

    Args:
        tree: Tree for which the outcome is needed, such as the tree before it was cut.
        outcome: Outcome of the verified tree.
    """
    if tree is outcome.tree:
        return outcome
    new_tokens = iter(outcome.new_token_ids)
    accepted, _ = follow(
        tree, lambda node: next(new_tokens), lambda run: len(run) == len(outcome.new_token_ids)
    )
    return replace(outcome, tree=tree, accepted=accepted)


def tried(outcome: Outcome) -> Iterator[tuple[int, bool]]:
    """Yield each node with an accepted parent, and whether it was itself accepted.

    The root counts as accepted. If the last emitted token is a draft token, its children are
    omitted, because the target's next token is not known.
    """
    reached = {-1, *outcome.accepted}
    # The target's prediction after the last new token is not known.
    predicted_at = {-1, *outcome.accepted[: len(outcome.new_token_ids) - 1]}
    return (
        (node, node in reached)
        for node, parent in enumerate(outcome.tree.parents)
        if parent in predicted_at
    )
