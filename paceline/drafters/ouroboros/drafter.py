"""Ouroboros (Zhao et al. 2024): a small model drafts phrase by phrase, and the target teaches the phrases.

Algorithm 1. The draft model runs Lookahead Decoding through `decode_step`, so it drafts several tokens per forward (section 2.4).
The target verifies the drafted chain together with K phrases of the pool behind its end (sections 2.2 and 2.3). One pool serves
both: the draft model fills it with its window, the target with the accepted text and with what it said about nodes that were not
accepted (section 2.5: `learning.py`); it may be kept for later requests (section 2.6).

What is different here, both from the paper and from its public code:

- the draft is not cut to gamma tokens; the token after a fully matched suffix is emitted, as for all drafters;
- prompt and answer go into the pool; every node teaches, not only those behind a rejection;
- phrases of the pool are verified behind the newest token as well; where the draft model was unsure, its alternatives are
  verified too, each with the phrase that follows it;
- of all this the engine feeds what pays for its forward, likeliest paths first (`budget`);
- any temperature, and batches. Drafts of sampled requests are drawn with the target's own keyed noise, so they agree with it more
  often than a draft model's arg-max would; all of them are guesses, so the text is that of plain decoding.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence as ListLike
from dataclasses import replace
from functools import partial
from typing import Any

from transformers import PreTrainedModel

from paceline.drafters.lookahead.drafter import Lookahead, LookaheadOptions
from paceline.drafters.ouroboros.learning import inspirations, refine
from paceline.drafters.ouroboros.options import OuroborosOptions
from paceline.drafters.ouroboros.pool_file import KeptPool
from paceline.drafters.ouroboros.proposal import Proposal, ProposalBuilder
from paceline.drafters.ouroboros.rates import Rates
from paceline.drafters.ouroboros.shadow import CHOICES, PhraseShadow, probs_of
from paceline.drafters.shared.ngram_pool import NgramPool
from paceline.drafters.shared.trees import outcome_of
from paceline.engine.budget import NodeRule, node_limit
from paceline.engine.drafter import Drafter, Outcome
from paceline.engine.kept_vocabulary import kept_alone
from paceline.engine.model import CachedLM
from paceline.engine.node_logits import NodeLogits
from paceline.engine.pairing import pair
from paceline.engine.sampling import says_likeliest
from paceline.engine.sequence import Sequence
from paceline.engine.step import decode_step
from paceline.engine.tree import EMPTY_TREE, DraftTree
from paceline.engine.verify import verify
from paceline.errors import ConfigError

__all__ = ["Ouroboros", "OuroborosOptions"]

_LEAST_ENTRIES = 15  # phrases kept per key, where the window is no wider: they cost memory only
_WARM_KEYS = 1 << 16  # keys of a pool that all requests share
_BATCH_NODES = 64  # per step, for the target; each sequence has room for its draft and a phrase at least


class Ouroboros(Drafter):
    """Drafts chains by a `CachedLM` that holds a shadow of every sequence, sped up by a phrase drafter. Guesses only."""

    name = "ouroboros"
    needs_predictions = True
    needs_draft_model = True
    Options = OuroborosOptions

    def __init__(self, options: OuroborosOptions, draft: CachedLM) -> None:
        self.node_rule = NodeRule(batch=_BATCH_NODES, least=options.gamma + options.ngram - 1)
        self.budget = options.budget
        self._options = options
        self._draft = draft
        self._entries = max(options.window, _LEAST_ENTRIES)
        guesses = max(options.window, options.suffixes)
        self._phrases = Lookahead(LookaheadOptions(options.window, options.ngram, guesses, pool=self._entries, prompt_pool=False))
        self._warm = NgramPool(self._entries, _WARM_KEYS) if options.warm or options.pool is not None else None
        self._kept: KeptPool | None = None
        if self._warm is not None and options.pool is not None:
            cold = options.bad_pool == "cold"
            rows = draft.architecture.vocab_size
            self._kept = KeptPool(options.pool, self._warm, options.ngram - 1, rows, cold)
            weakref.finalize(self, self._kept.save_changes)  # at the latest when the process ends
        self._rates = Rates()
        self._shadows: dict[int, PhraseShadow] = {}

    @classmethod
    def build(cls, options: OuroborosOptions, draft: CachedLM) -> Ouroboros:
        """Build it from its options and the draft model."""
        return cls(options, draft)

    @property
    def forward_seconds(self) -> float:
        """Seconds spent in the draft model."""
        return self._draft.forward_seconds

    def check_vocab_size(self, vocab_size: int, tokenizer: Any = None) -> None:
        """Refuse a pool with ids that the target does not have."""
        if self._kept is not None:
            self._kept.check_ids(vocab_size)

    def attach(self, target: PreTrainedModel, tokenizer: Any = None) -> None:
        """Prepare the draft model for its target."""
        pair(self._draft, target, tokenizer)

    def start(self, seq: Sequence) -> None:
        """Open the shadow. A prompt beyond the draft's context gets none, and no drafts."""
        context = self._draft.context_length
        if len(seq) > context:
            return
        self._draft.reserve(0, min(seq.max_length, context) + self._options.gamma + 2 * self._phrases.most_nodes)
        params = replace(
            seq.params, max_new_tokens=context, min_tokens=min(seq.params.min_tokens, context), stop=(), logits_processors=(),
            logprobs=None,
        )  # fmt: skip
        shadow = Sequence(seq.token_ids, params, eos_token_ids=seq.eos_token_ids, max_length=context)
        PhraseShadow.open_for(seq, shadow, self._draft)
        pool = NgramPool(self._entries) if self._warm is None else self._warm
        self._phrases.start(shadow, pool)
        if self._kept is not None:
            self._kept.changed = True
        self._shadows[seq.id] = PhraseShadow(shadow, len(seq), pool)

    def stop(self, seq: Sequence) -> None:
        """Close the shadow. A warm pool stays, and is saved while nobody waits."""
        shadow = self._shadows.pop(seq.id, None)
        if shadow is not None:
            self._phrases.stop(shadow.seq)
            self._draft.close(shadow.seq)
        if self._kept is not None and not self._shadows:
            self._kept.save_changes(wait=True)

    def save_pool(self) -> None:
        """Write the pool's file now, rather than when the drafter is idle or gone.

        Raises:
            ConfigError: there is no file, or it cannot be written.
        """
        if self._kept is None:
            raise ConfigError("ouroboros: got no file to save the pool to; expected the option pool. Choose one with pool=PATH.")
        self._kept.save()

    def propose(self, seqs: ListLike[Sequence], max_nodes: list[int]) -> list[DraftTree]:
        """Draft for every sequence, all sequences together in each draft forward."""
        trees = [EMPTY_TREE] * len(seqs)
        rows = []
        for row, (seq, limit) in enumerate(zip(seqs, max_nodes, strict=True)):
            shadow = self._shadows.get(seq.id)
            if shadow is not None:
                shadow.proposal = Proposal()
                shadow.goal = min(
                    self._options.gamma, shadow.reach, limit, seq.remaining - 1, self._draft.context_length - len(seq)
                )
                if shadow.goal > 0:
                    rows.append(row)
                    self._catch_up(seq, shadow)
        self._draft_phrases([self._shadows[seqs[row].id] for row in rows])
        for row in rows:
            seq, shadow = seqs[row], self._shadows[seqs[row].id]
            seq.counters.draft_forwards = shadow.seq.counters.target_forwards
            shadow.proposal = self._propose_tree(seq, shadow, max_nodes[row])
            trees[row] = shadow.proposal.tree
        return trees

    def observe(self, outcomes: ListLike[Outcome]) -> None:
        """Teach the pool what the target said about every tree."""
        options = self._options
        for outcome in outcomes:
            shadow = self._shadows.get(outcome.seq.id)
            if shadow is None:
                continue
            proposal, fed = shadow.proposal, len(outcome.tree)
            if self.budget and proposal.chain:
                self._rates.learn(proposal.evidence, outcome_of(proposal.tree, outcome))
                shadow.note_fed(sum(node < fed for node in proposal.chain))
            if not fed:
                continue
            known = proposal.begins_with(outcome.tree)  # else this target takes chains, and got the best branch
            if options.refinement and known and proposal.suffixes:
                refine(shadow.pool, outcome, proposal, options.ngram)
            chain = [node for node in proposal.chain if node < fed] if known else range(min(fed, len(proposal.chain)))
            for context, phrase in inspirations(outcome, chain, options.inspiration, options.ngram):
                shadow.pool.add(context, phrase)

    def _catch_up(self, seq: Sequence, shadow: PhraseShadow) -> None:
        """Give the shadow the target's tokens, and the pool their n-grams; begin a draft."""
        shadow.catch_up(self._draft, seq.token_ids)
        shadow.seq.finish_reason = None
        shadow.pool.add_text(seq.token_ids, shadow.pooled_tokens, self._options.ngram)
        shadow.pooled_tokens = len(seq)
        shadow.begin()

    def _draft_phrases(self, shadows: list[PhraseShadow]) -> None:
        """Draft until every shadow has reached its goal; those that have run along, as rows of one batch."""
        seqs = [shadow.seq for shadow in shadows]
        check = partial(self._verify_draft, {shadow.seq.id: shadow for shadow in shadows})
        least = (self._options.ngram - 1) * (self._options.window + 1) - 1  # the window, and a phrase
        most = node_limit(NodeRule(batch=self._phrases.most_nodes, least=least), len(seqs), self._phrases.most_nodes)
        alone = says_likeliest(seqs)
        while any(shadow.open for shadow in shadows):
            limits = [most if shadow.open else 0 for shadow in shadows]
            with kept_alone(alone):
                decode_step(self._draft, self._phrases, seqs, limits, check)

    def _verify_draft(
        self, shadows: dict[int, PhraseShadow], seqs: ListLike[Sequence], trees: ListLike[DraftTree], logits: NodeLogits
    ) -> list[Outcome]:
        """Verify phrases with the draft model, in its own `decode_step`; beside it, note what else it might have said."""
        if says_likeliest(seqs):
            logits = logits.with_top(CHOICES, self._draft.kept_ids)
        outcomes = verify(seqs, trees, logits)
        if not (self._options.branches or self.budget):
            return outcomes
        for row, outcome in enumerate(outcomes):
            if not outcome.new_token_ids:  # fed again without the phrases
                continue
            said_at = [0, *(node + 1 for node in outcome.accepted)][: len(outcome.new_token_ids)]
            if logits.top is None:
                own, top = probs_of(outcome.new_token_ids, logits[row][said_at])
            else:
                top = logits.top.of([logits.starts[row] + place for place in said_at])
                own = top.probs[:, 0].tolist()
            shadows[outcome.seq.id].note_probs(outcome.new_token_ids, own, top)
        return outcomes

    def _propose_tree(self, seq: Sequence, shadow: PhraseShadow, limit: int) -> Proposal:
        """Return the drafted chain, suffixes behind it, the draft model's alternatives, and phrases behind the root."""
        options = self._options
        builder = ProposalBuilder(
            seq.token_ids[-2:], shadow.drafted, shadow.probs, limit, min(limit, seq.remaining - 1),
            partial(self._phrases.phrases, shadow.seq), self._rates if self.budget else None,
        )  # fmt: skip
        if shadow.seq.finish_reason is None:
            builder.add_suffixes(options.suffixes)
        if options.branches:
            builder.add_alternatives(sorted(shadow.alternatives, reverse=True)[: options.branches])
            builder.add_phrases(options.suffixes)
        return builder.build()
