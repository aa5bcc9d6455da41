"""Draft with a model whose tokenizer differs from the target's.

The draft model drafts either tokens that are in both vocabularies, or text that is then converted
to the target's tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from transformers import PreTrainedModel

from paceline.core.drafter import Drafter, Outcome
from paceline.core.request import Request
from paceline.core.tree import EMPTY_TREE, DraftTree
from paceline.drafters.draft_model.drafter import DraftModel
from paceline.drafters.draft_model.options import DraftModelOptions
from paceline.drafters.draft_model.settings import MIN_SHARED_RATE
from paceline.drafters.draft_model.text_chains import TextChains
from paceline.model.cached_lm import CachedLM


class OtherTokenizerDrafter(Drafter):
    """Drafts with a draft model whose tokenizer differs from the target's.

    The draft model drafts either shared tokens, which are in both vocabularies
    (`model.token_map`), or text, which is then tokenised for the target (`text_chains`). Sampled
    drafts always consist of shared tokens, because they need the draft model's distribution over
    the target's tokens. Other drafts consist of shared tokens only if the draft model's vocabulary
    contains nearly all of the target's tokens.

    Args:
        options: Options of the drafter.
        draft: Draft model to use.
    """

    name = "draft_model"
    keeps_tokens = True
    needs_draft_model = True
    Options = DraftModelOptions

    def __init__(self, options: DraftModelOptions, draft: CachedLM) -> None:
        self._by_token = DraftModel(options, draft)
        self._by_text = TextChains(options, draft)
        self._prefers_text = False
        self.node_rule, self.budget = self._by_token.node_rule, self._by_token.budget

    @classmethod
    def build(cls, options: DraftModelOptions, draft: CachedLM) -> Drafter:
        """Build the drafter, or a `DraftModel` if the option `other_tokenizer` is off."""
        return cls(options, draft) if options.other_tokenizer else DraftModel(options, draft)

    @property
    def forward_seconds(self) -> float:
        """Total seconds spent in forward passes of the draft model."""
        return self._by_token.forward_seconds + self._by_text.forward_seconds

    def attach(self, target: PreTrainedModel, tokenizer: Any = None) -> None:
        """Prepare the draft model, and decide whether to draft shared tokens or text.

        Deterministic drafts consist of shared tokens if the draft model's vocabulary contains
        nearly all of the target's tokens.
        """
        self._by_token.attach(target, tokenizer)
        self._by_text.attach(target, tokenizer)
        self._prefers_text = self._by_token.shared_rate < MIN_SHARED_RATE

    def start(self, request: Request) -> None:
        """Create the draft model's copy of the request."""
        self._drafter_of(request).start(request)

    def stop(self, request: Request) -> None:
        """Delete the draft model's copy of the request."""
        self._drafter_of(request).stop(request)

    def seed_trees(self, request: Request, tree: DraftTree) -> None:
        """Seed the next draft with the nodes of `tree`, unless the draft is text."""
        if self._drafter_of(request) is self._by_token:
            self._by_token.seed_trees(request, tree)

    def propose(self, requests: Sequence[Request], max_nodes: list[int]) -> list[DraftTree]:
        """Draft shared tokens for some requests, and text for the others."""
        trees = [EMPTY_TREE] * len(requests)
        for drafter in (self._by_token, self._by_text):
            rows = [n for n, each in enumerate(requests) if self._drafter_of(each) is drafter]
            drafts = drafter.propose([requests[n] for n in rows], [max_nodes[n] for n in rows])
            for row, tree in zip(rows, drafts, strict=True):
                trees[row] = tree
        return trees

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        """Pass each outcome to the drafter that drafts for its request."""
        for drafter in (self._by_token, self._by_text):
            drafter.observe(
                [each for each in outcomes if self._drafter_of(each.request) is drafter]
            )

    def _drafter_of(self, request: Request) -> DraftModel | TextChains:
        if self._prefers_text and not self._by_token.draws(request):
            return self._by_text
        return self._by_token
