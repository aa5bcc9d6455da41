"""Merge the drafts of several sources into one draft tree.

Retrieval (`sssd`) searches the request, earlier answers and a datastore for long matches. The
target's cached next-token distributions (Token Recycling, `shared/recycled`) provide alternatives
at each branch. A hidden-state draft head predicts the next tokens (`paceline.draft_head`). If a
draft model or an EAGLE-3, DFlash or MTP head is given, it adds a separate tree (`model_source`,
`head_source`). If the draft budget is on, `draft_model_gate` decides when to run the draft model or
the head. The acceptance probability of each node is estimated from the predictions of its sources
and calibrated online (`shared/source_calibration`). The nodes with the highest path probability
form the tree.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from transformers import PreTrainedModel

from paceline.core.drafter import Outcome
from paceline.core.request import Request
from paceline.core.tree import EMPTY_TREE, DraftTree
from paceline.drafters.auto.draft_model_gate import DraftModelGates
from paceline.drafters.auto.grammar_source import GrammarSource
from paceline.drafters.auto.model_source import ModelSource, TreeSource
from paceline.drafters.auto.options import AutoOptions
from paceline.drafters.auto.prediction_source import PredictionSource
from paceline.drafters.auto.settings import AutoSettings
from paceline.drafters.shared.array_trees import ArrayTrees
from paceline.drafters.shared.draft_sources import (
    DRAFT_HEAD,
    DRAFT_MODEL,
    GRAMMAR,
    PREDICTION,
    RETRIEVAL,
    DraftSource,
)
from paceline.drafters.shared.recycler import Recycler, RecyclingDrafter, node_rule_of
from paceline.drafters.sssd.drafter import Sssd
from paceline.drafters.sssd.options import SssdOptions
from paceline.errors import ConfigError
from paceline.model.cached_lm import CachedLM

_SETTINGS = AutoSettings()


class Auto(RecyclingDrafter):
    """Merges the drafts from all sources into one tree.

    For a given seed, sampled answers equal those of plain decoding.
    """

    name = "auto"
    keeps_tokens = True
    takes_draft_model = True
    Options = AutoOptions

    def __init__(self, options: AutoOptions, draft: CachedLM | None = None) -> None:
        self._options = options
        self.budget = options.budget
        self.node_rule = node_rule_of(options.max_nodes, options.budget)
        self._retrieval = Sssd(
            SssdOptions(
                options.datastore,
                max_nodes=_SETTINGS.retrieved_nodes,
                answer_cache_tokens=options.answer_cache_tokens,
                update_datastore=options.update_datastore,
                last_logits=True,
            )
        )
        self._recycler = Recycler(options.max_context_ngram, pool_path=options.pool_file)
        self.ids_below = self._retrieval.ids_below
        self._model = _model_source(options, draft)
        self._grammar = GrammarSource() if options.use_grammar else None
        self._prediction = PredictionSource()
        self._gates = DraftModelGates()
        self._head_draft: dict[int, DraftTree] = {}  # by request
        if isinstance(options.draft_head, str):
            self.draft_head = options.draft_head
        # Mean number of verified nodes per request in the last step; number of steps so far.
        self._fed, self._steps = (_SETTINGS.full_head_nodes, 0)

    @classmethod
    def build(cls, options: AutoOptions, draft: CachedLM | None = None) -> Auto:
        """Build the drafter from its options and an optional draft model.

        Raises:
            DatastoreError: The datastore cannot be read.
            ConfigError: The file of cached distributions (`pool_file`) or the head (`state_head`)
                cannot be read.
        """
        return cls(options, draft)

    @property
    def forward_seconds(self) -> float:
        """Total seconds spent in forward passes of the draft model or the head."""
        return 0.0 if self._model is None else self._model.forward_seconds

    def check_vocab_size(self, vocab_size: int, tokenizer: Any = None) -> None:
        """Reject a `pool_file` that was recorded with a different vocabulary.

        The method also limits the drafts to token ids below `vocab_size`.
        """
        super().check_vocab_size(vocab_size, tokenizer)
        self._retrieval.check_vocab_size(vocab_size, tokenizer)

    def check_tokenizer(self, tokenizer: Any) -> None:
        """Reject a datastore or `pool_file` that was made with a different tokenizer."""
        super().check_tokenizer(tokenizer)
        self._retrieval.check_tokenizer(tokenizer)

    def attach(self, target: PreTrainedModel, tokenizer: Any = None) -> None:
        """Prepare the draft model or the head (`state_head`) for the target."""
        if self._model is not None:
            self._model.attach(target, tokenizer)

    def num_head_tokens(self) -> int:
        """Return the number of tokens that the draft head should predict in the next step.

        If the draft budget is on, the number depends on how many draft nodes the engine verifies.
        The number is lower if the draft model ran in the last step. While drafting is slower than
        plain decoding, the head runs only occasionally.
        """
        if self._options.draft_head is False:
            return 0
        if not self.budget:
            return _SETTINGS.max_head_tokens
        if self._fed < _SETTINGS.full_head_nodes:
            return (
                1
                if self._fed >= _SETTINGS.min_head_nodes
                or self._steps % _SETTINGS.head_retry_steps == 0
                else 0
            )
        return (
            _SETTINGS.head_tokens_with_model + (self._fed >= _SETTINGS.many_nodes)
            if self._gates.has_run_model
            else _SETTINGS.max_head_tokens
        )

    def start(self, request: Request) -> None:
        """Prepare all sources for a new request."""
        self._retrieval.start(request)
        self._prediction.start(request)
        if self._grammar is not None:
            self._grammar.start(request)
        if self._model is not None:
            self._model.start(request)

    def propose(self, requests: Sequence[Request], max_nodes: list[int]) -> list[DraftTree]:
        """Draft one tree per request by merging the trees from all sources."""
        if self._model is None and not any(max_nodes):  # a pause; the sources catch up later
            for request in requests:
                self._head_draft.pop(request.id, None)
            return self._merge(requests, max_nodes, {})
        retrieved = self._retrieval.retrieve(requests, list(map(_retrieved_nodes, max_nodes)))
        head_drafts = [self._head_draft.pop(request.id, EMPTY_TREE) for request in requests]
        trees = {
            RETRIEVAL: retrieved,
            PREDICTION: ArrayTrees.of(self._prediction.propose(requests, max_nodes)),
            DRAFT_HEAD: ArrayTrees.of(head_drafts),
        }
        if self._grammar is not None:
            trees[GRAMMAR] = ArrayTrees.of(self._grammar.propose(requests, max_nodes))
        others = self._merge(requests, max_nodes, trees)
        if self._model is None:
            return others
        if self.budget:
            by_request = {request.id: tree for request, tree in zip(requests, others, strict=True)}
            # Steps that process prompts take longer than decode steps, so they are not timed.
            if not self._gates.begin(by_request, all(request.output_ids for request in requests)):
                self._model.propose(requests, [0] * len(requests))
                return others
        if isinstance(self._model, ModelSource):
            self._model.seed_trees(requests, others)
        trees[DRAFT_MODEL] = ArrayTrees.of(self._model.propose(requests, max_nodes))
        self._gates.model_finished()
        return self._merge(requests, max_nodes, trees)

    def _merge(
        self,
        requests: Sequence[Request],
        max_nodes: list[int],
        trees: Mapping[DraftSource, ArrayTrees],
    ) -> list[DraftTree]:
        """Merge the trees of all sources into one tree per request."""
        return self._recycler.draft(requests, max_nodes, self._options.min_path_probability, trees)

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        """Cache the target's distributions, and pass the outcomes to all sources."""
        self._retrieval.observe(outcomes)
        self._recycler.observe(outcomes)
        self._steps += 1
        self._fed = sum(len(outcome.tree) for outcome in outcomes) / max(1, len(outcomes))
        self._head_draft.update(
            (outcome.request.id, outcome.head_draft)
            for outcome in outcomes
            if outcome.head_draft is not None
        )
        if self._model is not None:
            self._model.observe(outcomes)
            self._gates.end(outcomes)

    def stop(self, request: Request) -> None:
        """Free a request's state in all sources."""
        self._retrieval.stop(request)
        self._prediction.stop(request)
        if self._grammar is not None:
            self._grammar.stop(request)
        self._recycler.stop(request)
        self._head_draft.pop(request.id, None)
        if self._model is not None:
            self._model.stop(request)
            self._gates.stop(request)


def _retrieved_nodes(limit: int) -> int:
    """Return the maximum number of retrieved nodes for a merged tree of `limit` nodes."""
    if not limit:
        return 0
    return min(_SETTINGS.retrieved_nodes, max(_SETTINGS.min_retrieved_nodes, limit))


def _model_source(options: AutoOptions, draft: CachedLM | None) -> TreeSource | None:
    """Return the draft model or the head (`state_head`) as a source of draft trees.

    The result is None if there is neither a draft model nor a head.

    Raises:
        ConfigError: Both are given, or the head cannot be read.
    """
    if draft is not None and not options.use_draft_model:
        draft = None
    if options.state_head is None:
        return (
            None if draft is None else ModelSource(draft, options.budget, options.other_tokenizer)
        )
    if draft is not None:
        raise ConfigError(
            "auto: got both a draft model and state_head; expected one of them. Leave one out, or"
            " set use_draft_model=false."
        )
    from paceline.drafters.auto.head_source import HeadSource  # imports model code

    return HeadSource(options.state_head, options.budget)
