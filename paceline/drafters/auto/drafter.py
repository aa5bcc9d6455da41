"""One tree from everything that is known: retrieval, the target's own distributions, kept, and a
draft model where there is one.

Retrieval (`sssd`: the request itself and a datastore) gives long runs, the kept distributions
(`shared/recycled`) the alternatives at each fork. A child's chance is counted online by what both
say about it (`shared/chances`), by what the target's hidden state foretells (`engine/draft_head`),
and by what the draft model says, where it was asked (`model_source`; with the budget where that
pays: `asking`). The tree takes what is likeliest on its whole path, from any source.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from transformers import PreTrainedModel

from paceline.core.drafter import Outcome
from paceline.core.request import Request
from paceline.core.tree import EMPTY_TREE, DraftTree
from paceline.drafters.auto.draft_model_gate import DraftModelGates
from paceline.drafters.auto.model_source import ModelSource
from paceline.drafters.auto.options import AutoOptions
from paceline.drafters.shared.recycler import Recycler, RecyclingDrafter, node_rule_of
from paceline.drafters.sssd.drafter import Sssd
from paceline.drafters.sssd.options import SssdOptions
from paceline.model.cached_lm import CachedLM

_RETRIEVED = 48  # nodes that retrieval may propose
_FAR = 16  # tokens that are foreseen at most
_BESIDE, _MANY = (
    1,
    12,
    # beside what a draft model says; drafts that are fed for each sequence, from which on it is one
    # more
)
_DEEP, _WORTH_IT = (
    3.0,
    0.5,
    # drafts that are fed for each sequence, from which on all of these are worth their time, or one
    # is
)
_AGAIN = 16  # steps until it is tried again


class Auto(RecyclingDrafter):
    """Guesses only: lossless and seed-identical at any temperature."""

    name = "auto"
    takes_draft_model = True
    Options = AutoOptions

    def __init__(self, options: AutoOptions, draft: CachedLM | None = None) -> None:
        self._options = options
        self.budget = options.budget
        self.node_rule = node_rule_of(options.max_nodes, options.budget)
        self._retrieval = Sssd(
            SssdOptions(
                options.datastore,
                calibration=options.calibration,
                max_nodes=_RETRIEVED,
                answer_cache_tokens=options.answer_cache_tokens,
                update_datastore=options.update_datastore,
            )
        )
        self._recycler = Recycler(options.max_context_ngram, pool=options.pool_file)
        self.ids_below = self._retrieval.ids_below
        self._model = (
            None
            if draft is None or not options.use_draft_model
            else ModelSource(draft, brief=self.budget)
        )
        self._askings = DraftModelGates()
        self._head_draft: dict[int, DraftTree] = {}  # by sequence
        if isinstance(options.draft_head, str):
            self.draft_head = options.draft_head
        self._fed, self._steps = _DEEP, 0  # drafts that the last step fed for each sequence

    @classmethod
    def build(cls, options: AutoOptions, draft: CachedLM | None = None) -> Auto:
        """Build one from its options, and a draft model if there is one.

        Raises:
            DatastoreError, ConfigError: a store, a calibration or a pool that cannot be read.
        """
        return cls(options, draft)

    @property
    def forward_seconds(self) -> float:
        """Seconds spent in the draft model."""
        return 0.0 if self._model is None else self._model.forward_seconds

    def check_vocab_size(self, vocab_size: int, tokenizer: Any = None) -> None:
        """Refuse a pool of another vocabulary; retrieve ids of the target only."""
        super().check_vocab_size(vocab_size, tokenizer)
        self._retrieval.check_vocab_size(vocab_size, tokenizer)

    def check_tokenizer(self, tokenizer: Any) -> None:
        """Refuse a store or a pool whose ids are not of `tokenizer`."""
        super().check_tokenizer(tokenizer)
        self._retrieval.check_tokenizer(tokenizer)

    def attach(self, target: PreTrainedModel, tokenizer: Any = None) -> None:
        """Pass on to the draft model."""
        if self._model is not None:
            self._model.attach(target, tokenizer)

    def num_head_tokens(self) -> int:
        """Ask for what follows; with the budget only as far as drafts are fed, less beside a
        draft model, and now and then.
        """
        if self._options.draft_head is False:
            return 0
        if not self.budget:
            return _FAR
        if self._fed < _DEEP:
            return 1 if self._fed >= _WORTH_IT or self._steps % _AGAIN == 0 else 0
        return _BESIDE + (self._fed >= _MANY) if self._askings.has_asked else _FAR

    def start(self, request: Request) -> None:
        """Pass on to the sources."""
        self._retrieval.start(request)
        if self._model is not None:
            self._model.start(request)

    def propose(self, requests: Sequence[Request], max_nodes: list[int]) -> list[DraftTree]:
        """Draft one tree per sequence."""
        retrieved = self._retrieval.propose(
            requests, [_RETRIEVED if limit else 0 for limit in max_nodes]
        )
        head_draft = [self._head_draft.pop(request.id, EMPTY_TREE) for request in requests]
        others = self._joined(requests, max_nodes, retrieved, head_draft)
        if self._model is None:
            return others
        if self.budget:
            by_seq = {request.id: tree for request, tree in zip(requests, others, strict=True)}
            # What prompts take says nothing about decoding.
            if not self._askings.begin(by_seq, all(request.output_ids for request in requests)):
                self._model.propose(requests, [0] * len(requests))
                return others
        self._model.seed_trees(requests, others)
        modelled = self._model.propose(requests, max_nodes)
        self._askings.asked()
        return self._joined(requests, max_nodes, retrieved, head_draft, modelled)

    def _joined(
        self, requests: Sequence[Request], max_nodes: list[int], *sources: list[DraftTree]
    ) -> list[DraftTree]:
        """Return trees of what is kept and of what was retrieved, foreseen and, if it was asked,
        said by a draft model.
        """
        return [
            self._recycler.draft(request, limit, self._options.min_path_probability, *trees)
            for request, limit, *trees in zip(requests, max_nodes, *sources, strict=True)
        ]

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        """Keep what the target said."""
        self._retrieval.observe(outcomes)
        self._recycler.observe(outcomes)
        self._steps += 1
        self._fed = sum(len(outcome.tree) for outcome in outcomes) / max(1, len(outcomes))
        self._head_draft.update(
            (one.request.id, one.head_draft) for one in outcomes if one.head_draft is not None
        )
        if self._model is not None:
            self._model.observe(outcomes)
            self._askings.end(outcomes)

    def stop(self, request: Request) -> None:
        """Free what belongs to a sequence."""
        self._retrieval.stop(request)
        self._recycler.stop(request)
        self._head_draft.pop(request.id, None)
        if self._model is not None:
            self._model.stop(request)
            self._askings.stop(request)
