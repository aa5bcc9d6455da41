"""Trees that may be cut before they are fed: the likeliest paths first; what the text made of a
tree, fed whole or not.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from paceline.core.drafter import Outcome
from paceline.core.tree import DraftTree
from paceline.verification.verify import follow


def likeliest_first(tree: DraftTree) -> tuple[DraftTree, list[int]]:
    """Return a tree of guesses with the likeliest paths first, and per node which one of `tree` it
    was.

    Args:
        tree: guesses with confidence, none above 1, so that no node is likelier than its parent.
    """
    assert tree.confidence is not None
    assert tree.probs is None
    assert not tree.probes
    chances = tree.path_chances()
    before = sorted(
        range(len(tree)), key=lambda node: -chances[node]
    )  # stable: of equals the parent comes first
    if before == list(range(len(tree))):
        return tree, before
    place = {-1: -1} | {node: at for at, node in enumerate(before)}
    return DraftTree(
        [tree.token_ids[node] for node in before],
        [place[tree.parents[node]] for node in before],
        confidence=[tree.confidence[node] for node in before],
        origins=None if tree.origins is None else [tree.origins[node] for node in before],
    ), before


def outcome_of(tree: DraftTree, outcome: Outcome) -> Outcome:
    """Return what the text that was said makes of a tree of which the target may have seen another
    part, or nothing.

    The target's choices behind its nodes stay those of the tree that was fed.
    """
    if tree is outcome.tree:
        return outcome
    said = iter(outcome.new_token_ids)
    accepted, _ = follow(
        tree, lambda node: next(said), lambda run: len(run) == len(outcome.new_token_ids)
    )
    return replace(outcome, tree=tree, accepted=accepted)


def tried(outcome: Outcome) -> Iterator[tuple[int, bool]]:
    """Return the nodes that the target has decided on, fed or not, each with whether it was
    right.
    """
    reached = {-1, *outcome.accepted}
    spoken_at = {
        -1,
        *outcome.accepted[: len(outcome.new_token_ids) - 1],
    }  # nothing is known of what follows the last token
    return (
        (node, node in reached)
        for node, parent in enumerate(outcome.tree.parents)
        if parent in spoken_at
    )
