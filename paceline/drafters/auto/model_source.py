"""A draft model as one source among others: its trees are guesses, and it learns from the text,
whatever was fed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from paceline.core.drafter import DelegatingDrafter
from paceline.core.node_rule import node_limit
from paceline.core.request import Request
from paceline.core.tree import DraftTree
from paceline.drafters.draft_model.drafter import DraftModel, DraftModelOptions
from paceline.model.cached_lm import CachedLM

_ROOM = 256  # nodes the draft model may propose, but for its own rule
# nodes of others that it is asked about, of all sequences: with a root, as many rows as cost little
# more than one
_MAX_SEED_NODES = 11
# summed confidence of newest guesses below which it stops; others' guesses take it far in one
# forward
_STOP_THRESHOLD = 0.8
_CHAIN_CONFIDENCE = 0.7  # confidence in the nodes of a chain, which has none


class ModelSource(DelegatingDrafter):
    """Proposes guesses with confidence, never draws.

    Args:
        draft: the draft model.
        brief: it does not draft on for little: its forwards take time.
    """

    def __init__(self, draft: CachedLM, brief: bool) -> None:
        self._drafter = DraftModel(
            DraftModelOptions(
                stop_threshold=_STOP_THRESHOLD if brief else None, verification="follow"
            ),
            draft,
        )
        super().__init__(self._drafter)

    def seed_trees(self, requests: Sequence[Request], trees: Sequence[DraftTree]) -> None:
        """Have the next trees begin with what the draft model says to those of others."""
        each = _MAX_SEED_NODES // max(1, len(requests))
        for request, tree in zip(requests, trees, strict=True):
            self._drafter.seed_trees(request, tree.first(each))

    def propose(self, requests: Sequence[Request], max_nodes: list[int]) -> list[DraftTree]:
        """Propose a tree per sequence, of as many nodes as the draft model is sure of."""
        most = [
            node_limit(self.node_rule, len(requests), _ROOM) if limit else 0 for limit in max_nodes
        ]
        return [_with_confidence(tree) for tree in self.inner.propose(requests, most)]


def _with_confidence(tree: DraftTree) -> DraftTree:
    return (
        tree
        if tree.confidence is not None or not tree.token_ids
        else replace(tree, confidence=[_CHAIN_CONFIDENCE] * len(tree))
    )
