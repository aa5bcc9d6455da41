"""Use a draft model as one of several sources of deterministic drafts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from paceline.core.delegating_drafter import DelegatingDrafter
from paceline.core.node_rule import node_limit
from paceline.core.request import Request
from paceline.core.tree import DraftTree
from paceline.drafters.auto.settings import ModelSourceSettings
from paceline.drafters.draft_model.drafter import DraftModel, DraftModelOptions
from paceline.drafters.draft_model.other_tokenizer import OtherTokenizerDrafter
from paceline.model.cached_lm import CachedLM

_SETTINGS = ModelSourceSettings()


class TreeSource(DelegatingDrafter):
    """Proposes another drafter's trees, and adds confidences to trees that have none."""

    def propose(self, requests: Sequence[Request], max_nodes: list[int]) -> list[DraftTree]:
        """Propose one tree per request, within the other drafter's own node limits.

        A request whose node limit is 0 gets an empty tree. Other values in `max_nodes` are ignored.
        """
        limits = [
            node_limit(self.node_rule, len(requests), _SETTINGS.max_nodes) if limit else 0
            for limit in max_nodes
        ]
        return [_with_confidence(tree) for tree in self.inner.propose(requests, limits)]


class ModelSource(TreeSource):
    """Proposes deterministic draft trees with confidences from a draft model.

    Args:
        draft: Draft model to use.
        brief: Whether to end a draft as soon as the draft model is unsure, which saves forward
            passes.
        other_tokenizer: Whether the draft model may have a different tokenizer; default False.
    """

    def __init__(self, draft: CachedLM, brief: bool, other_tokenizer: bool = False) -> None:
        options = DraftModelOptions(
            stop_threshold=_SETTINGS.stop_threshold if brief else None,
            verification="follow",
            other_tokenizer=other_tokenizer,
        )
        drafter_type = OtherTokenizerDrafter if other_tokenizer else DraftModel
        self._drafter = drafter_type(options, draft)
        super().__init__(self._drafter)

    def seed_trees(self, requests: Sequence[Request], trees: Sequence[DraftTree]) -> None:
        """Seed the next trees with the most likely nodes from the other sources.

        The draft model's first forward pass predicts the next token after each of these nodes.
        """
        each = _SETTINGS.max_seed_nodes // max(1, len(requests))
        for request, tree in zip(requests, trees, strict=True):
            self._drafter.seed_trees(request, tree.first(each))


def _with_confidence(tree: DraftTree) -> DraftTree:
    return (
        tree
        if tree.confidence is not None or not tree.token_ids
        else replace(tree, confidence=[_SETTINGS.chain_confidence] * len(tree))
    )
