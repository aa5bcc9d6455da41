"""Ouroboros (Zhao et al. 2024, algorithm 1): draft phrase by phrase.

The draft model drafts a chain by Lookahead Decoding, so that each of its forward passes yields
several tokens (section 2.4). Lookahead Decoding also fills a pool of phrases. The target verifies
the drafted chain together with K phrases from the pool that may follow the chain (sections 2.2 and
2.3). After each verification, the drafter adds phrases to the pool: the accepted text, and the
target's predictions at rejected nodes (section 2.5: `learning.py`). An option keeps the pool for
later requests (section 2.6).

Differences from the paper and the authors' code:

- The drafter does not cut a draft to gamma tokens, the draft length in the paper. If the target
  accepts a whole phrase after the chain, the step also emits the target's next token.
- The drafter also adds phrases from the prompt and the answer to the pool. It adds the target's
  predictions at all nodes, not only those after a rejection.
- The tree also contains phrases that follow the newest token. If the draft model was unsure of a
  token, the tree contains its alternatives to that token as well. A phrase from the pool follows
  each alternative.
- With the option `budget`, the engine verifies only the nodes that are expected to save time. The
  most likely paths come first.
- The drafter works at any temperature and batch size. For sampled requests, the draft model uses
  the same random numbers as the target. Such drafts agree with the target more often than drafts
  of the most likely tokens. All drafts are deterministic, so the text equals that of plain
  decoding.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from transformers import PreTrainedModel

from paceline.core.drafter import Drafter, Outcome
from paceline.core.node_logits import NodeLogits
from paceline.core.node_rule import NodeRule, node_limit
from paceline.core.request import Request
from paceline.core.tree import EMPTY_TREE, DraftTree
from paceline.drafters.lookahead.drafter import Lookahead, LookaheadOptions
from paceline.drafters.ouroboros.learning import inspirations, refine
from paceline.drafters.ouroboros.options import OuroborosOptions
from paceline.drafters.ouroboros.phrase_acceptance import PhraseAcceptance
from paceline.drafters.ouroboros.phrase_sequence import PhraseSequence, probs_of_runs
from paceline.drafters.ouroboros.pool_file import PoolFile
from paceline.drafters.ouroboros.proposal import Proposal, ProposalBuilder
from paceline.drafters.ouroboros.settings import BATCH_NODES, CHOICES, MIN_ENTRIES, SHARED_KEYS
from paceline.drafters.shared.ngram_pool import NgramPool
from paceline.drafters.shared.trees import outcome_of
from paceline.engine.step import decode_step
from paceline.errors import ConfigError
from paceline.model.cached_lm import CachedLM
from paceline.model.pairing import pair
from paceline.sampling.sampler import is_greedy
from paceline.sampling.top_tokens import find_top_tokens
from paceline.verification.verify import verify

__all__ = ["Ouroboros", "OuroborosOptions"]


class Ouroboros(Drafter):
    """Drafts chains with a draft model that verifies phrases from a pool."""

    name = "ouroboros"
    keeps_tokens = True
    needs_predictions = True
    needs_draft_model = True
    Options = OuroborosOptions

    def __init__(self, options: OuroborosOptions, draft: CachedLM) -> None:
        self.node_rule = NodeRule(
            batch_nodes=BATCH_NODES, min_nodes=options.gamma + options.ngram - 1
        )
        self.budget = options.budget
        self._options = options
        self._draft = draft
        self._entries = max(options.window, MIN_ENTRIES)
        guesses = max(options.window, options.suffixes)
        self._phrases = Lookahead(
            LookaheadOptions(
                options.window,
                options.ngram,
                guesses,
                ngrams_per_key=self._entries,
                prompt_pool=False,
            )
        )
        self._warm = (
            NgramPool(self._entries, SHARED_KEYS)
            if options.shared_pool or options.pool_file is not None
            else None
        )
        self._kept: PoolFile | None = None
        if self._warm is not None and options.pool_file is not None:
            cold = options.on_invalid_file == "reset"
            rows = draft.architecture.vocab_size
            self._kept = PoolFile(options.pool_file, self._warm, options.ngram - 1, rows, cold)
            weakref.finalize(self, self._kept.save_changes)  # at the latest when the process ends
        self._rates = PhraseAcceptance()
        self._shadows: dict[int, PhraseSequence] = {}

    @classmethod
    def build(cls, options: OuroborosOptions, draft: CachedLM) -> Ouroboros:
        """Build the drafter from its options and the draft model."""
        return cls(options, draft)

    @property
    def forward_seconds(self) -> float:
        """Total seconds spent in forward passes of the draft model."""
        return self._draft.forward_seconds

    def check_vocab_size(self, vocab_size: int, tokenizer: Any = None) -> None:
        """Reject a pool file with token ids outside the target's vocabulary."""
        if self._kept is not None:
            self._kept.check_ids(vocab_size)

    def attach(self, target: PreTrainedModel, tokenizer: Any = None) -> None:
        """Prepare the draft model for its target, and check that their vocabularies match."""
        pair(self._draft, target, tokenizer)

    def start(self, request: Request) -> None:
        """Create the draft model's copy of the request.

        If the prompt exceeds the draft model's context, no copy is created and nothing is drafted.
        """
        context = self._draft.context_length
        if len(request) > context:
            return
        self._draft.reserve(
            0, min(request.max_length, context) + self._options.gamma + 2 * self._phrases.max_nodes
        )
        params = replace(
            request.params,
            max_new_tokens=context,
            min_tokens=min(request.params.min_tokens, context),
            stop=(),
            logits_processors=(),
            logprobs=None,
        )
        shadow = Request(
            request.token_ids, params, eos_token_ids=request.eos_token_ids, max_length=context
        )
        PhraseSequence.open_for(request, shadow, self._draft)
        pool = NgramPool(self._entries) if self._warm is None else self._warm
        self._phrases.start(shadow, pool)
        if self._kept is not None:
            self._kept.changed = True
        self._shadows[request.id] = PhraseSequence(shadow, len(request), pool)

    def stop(self, request: Request) -> None:
        """Delete the draft model's copy of the request.

        If no other request is open, also save the pool file.
        """
        shadow = self._shadows.pop(request.id, None)
        if shadow is not None:
            self._phrases.stop(shadow.request)
            self._draft.close(shadow.request)
        if self._kept is not None and not self._shadows:
            self._kept.save_changes(wait=True)

    def save_pool(self) -> None:
        """Write the pool file immediately.

        Raises:
            ConfigError: No file was given, or the file cannot be written.
        """
        if self._kept is None:
            raise ConfigError(
                "ouroboros: got no file to save the pool to; expected the option pool_file. Choose"
                " one with pool_file=PATH."
            )
        self._kept.save()

    def propose(self, requests: Sequence[Request], max_nodes: list[int]) -> list[DraftTree]:
        """Draft for all requests together, so they share the draft model's forward passes."""
        trees = [EMPTY_TREE] * len(requests)
        rows = []
        for row, (request, limit) in enumerate(zip(requests, max_nodes, strict=True)):
            shadow = self._shadows.get(request.id)
            if shadow is not None:
                shadow.proposal = Proposal()
                shadow.goal = min(
                    self._options.gamma,
                    shadow.reach,
                    limit,
                    request.remaining - 1,
                    self._draft.context_length - len(request),
                )
                if shadow.goal > 0:
                    rows.append(row)
                    self._catch_up(request, shadow)
        self._draft_phrases([self._shadows[requests[row].id] for row in rows])
        for row in rows:
            request, shadow = requests[row], self._shadows[requests[row].id]
            request.counters.draft_forwards = shadow.request.counters.target_forwards
            shadow.proposal = self._propose_tree(request, shadow, max_nodes[row])
            trees[row] = shadow.proposal.tree
        return trees

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        """Extend the pool with phrases that the target predicted at the trees' nodes."""
        options = self._options
        for outcome in outcomes:
            shadow = self._shadows.get(outcome.request.id)
            if shadow is None:
                continue
            proposal, num_processed = shadow.proposal, len(outcome.tree)
            if self.budget and proposal.chain:
                self._rates.learn(proposal.evidence, outcome_of(proposal.tree, outcome))
                shadow.note_processed(sum(node < num_processed for node in proposal.chain))
            if not num_processed:
                continue
            # A target that verifies only chains received the best branch instead of the tree.
            known = proposal.begins_with(outcome.tree)
            if options.refinement and known and proposal.suffixes:
                refine(shadow.pool, outcome, proposal, options.ngram)
            chain = (
                [node for node in proposal.chain if node < num_processed]
                if known
                else range(min(num_processed, len(proposal.chain)))
            )
            for context, phrase in inspirations(outcome, chain, options.inspiration, options.ngram):
                shadow.pool.add(context, phrase)

    def _catch_up(self, request: Request, shadow: PhraseSequence) -> None:
        """Update the draft model's copy and the pool with new tokens, and start a draft."""
        shadow.sync_with_target(self._draft, request.token_ids)
        shadow.request.finish_reason = None
        shadow.pool.add_text(request.token_ids, shadow.pooled_tokens, self._options.ngram)
        shadow.pooled_tokens = len(request)
        shadow.begin()

    def _draft_phrases(self, shadows: list[PhraseSequence]) -> None:
        """Draft until each request's chain has reached its intended length.

        A request whose chain is long enough keeps its row in the batch, but its chain does not
        grow.
        """
        requests = [shadow.request for shadow in shadows]
        check = partial(self._verify_draft, {shadow.request.id: shadow for shadow in shadows})
        # The number of nodes in the window and one phrase.
        min_nodes = (self._options.ngram - 1) * (self._options.window + 1) - 1
        max_nodes = node_limit(
            NodeRule(batch_nodes=self._phrases.max_nodes, min_nodes=min_nodes),
            len(requests),
            self._phrases.max_nodes,
        )
        reduced = is_greedy(requests)
        while any(shadow.open for shadow in shadows):
            limits = [max_nodes if shadow.open else 0 for shadow in shadows]
            decode_step(self._draft, self._phrases, requests, limits, check, reduced)

    def _verify_draft(
        self,
        shadows: dict[int, PhraseSequence],
        requests: Sequence[Request],
        trees: Sequence[DraftTree],
        logits: NodeLogits,
    ) -> list[Outcome]:
        """Verify phrases with the draft model, and record alternatives to its tokens."""
        if is_greedy(requests):
            logits = find_top_tokens(logits, CHOICES, self._draft.kept_ids)
        outcomes = verify(requests, trees, logits)
        if self._options.max_branches or self.budget:
            # If a request gets no new tokens, its step is repeated without phrases.
            drafted = [row for row, outcome in enumerate(outcomes) if outcome.new_token_ids]
            probs = probs_of_runs([outcomes[row] for row in drafted], logits.select(drafted))
            for row, run_probs in zip(drafted, probs, strict=True):
                outcome = outcomes[row]
                shadows[outcome.request.id].note_probs(outcome.new_token_ids, run_probs)
        return outcomes

    def _propose_tree(self, request: Request, shadow: PhraseSequence, limit: int) -> Proposal:
        """Build a request's proposal: a draft tree that contains the drafted chain.

        The tree also contains phrases after the chain (suffixes). If `max_branches` is above 0, it
        also contains alternatives to the chain's tokens, and phrases after the root.
        """
        options = self._options
        builder = ProposalBuilder(
            request.token_ids[-2:],
            shadow.drafted,
            shadow.probs,
            limit,
            min(limit, request.remaining - 1),
            partial(self._phrases.phrases, shadow.request),
            self._rates if self.budget else None,
        )
        if shadow.request.finish_reason is None:
            builder.add_suffixes(options.suffixes)
        if options.max_branches:
            builder.add_alternatives(
                sorted(shadow.alternatives, reverse=True)[: options.max_branches]
            )
            builder.add_phrases(options.suffixes)
        return builder.build()
