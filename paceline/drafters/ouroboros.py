"""Ouroboros (Zhao et al. 2024): a small model drafts phrase by phrase, and the target teaches the phrases.

The draft model runs Lookahead Decoding through `decode_step`, so it drafts several tokens per forward. The target verifies
the drafted chain together with K phrases of the pool behind its end. One pool serves both: the draft model fills it with its
window, the target with the accepted text and with what it said about nodes that were not accepted (`ouroboros_learning`).

Beyond the paper and its public code: the draft is not cut to gamma tokens; the token after a fully matched suffix is emitted
(verification is shared with all drafters); prompt and answer go into the pool; every node teaches, not those behind a
rejection only; phrases of the pool are verified behind the newest token as well; where the draft model was unsure, its
further choices are verified too, each with the phrase that follows it; any temperature, and batches.

Drafts of sampled requests are drawn with the target's own keyed noise, so they agree with it more often than a draft model's
arg-max would; all of them are guesses, so the text is that of plain decoding.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, cast

import torch
from torch import Tensor

from paceline.drafter import Drafter, Outcome
from paceline.drafters import create
from paceline.drafters.ngram_pool import NgramPool
from paceline.drafters.ouroboros_learning import Proposal, inspirations, refine
from paceline.drafters.ouroboros_options import OuroborosOptions
from paceline.drafters.pool_file import KeptPool
from paceline.drafters.shadow import Shadow
from paceline.errors import ConfigError
from paceline.model import CachedLM
from paceline.sequence import Sequence
from paceline.step import decode_step
from paceline.tree import EMPTY_TREE, DraftTree, TreeBuilder
from paceline.verify import verify

if TYPE_CHECKING:
    from paceline.drafters.lookahead import Lookahead

__all__ = ["Ouroboros", "OuroborosOptions"]

_LEAST_ENTRIES = 15  # phrases kept per key, where the window is no wider: they cost memory only
_WARM_KEYS = 1 << 16  # keys of a pool that all requests share
_SHARED_NODES = 64  # of a batch per step, for the target; each sequence has room for its draft and a phrase at least
_CHOICES = 3  # of the draft model per token, the drafted one included
_LEAST_CHANCE = 0.03  # of a further choice, by the draft's probabilities, that it is worth a node


class _Choice(NamedTuple):
    """A token the draft model might have said in `place` of its chain instead, and the chance of that."""

    chance: float
    place: int
    token: int


@dataclass(slots=True)
class _Shadow(Shadow):
    """What a sequence owns here.

    Attributes:
        pool: the phrases this sequence uses; pooled: how many of the target's tokens are in it.
        goal: tokens wanted of the running draft.
        chance: that the draft so far is right, by the draft's own probabilities; choices: what else it might have said.
    """

    pool: NgramPool
    pooled: int = 0
    goal: int = 0
    chance: float = 1.0
    choices: list[_Choice] = field(default_factory=list)
    proposal: Proposal = field(default_factory=Proposal)

    @property
    def drafted(self) -> list[int]:
        """The draft so far."""
        return self.seq.token_ids[self.agreed :]

    @property
    def open(self) -> bool:
        """Whether more is to be drafted; nothing follows an end of sequence."""
        return len(self.seq) - self.agreed < self.goal and self.seq.finish_reason is None


class Ouroboros(Drafter):
    """Owns a `CachedLM` that holds a shadow of every sequence, and the phrase drafter that speeds it up. Guesses only."""

    name = "ouroboros"
    Options = OuroborosOptions

    def __init__(self, options: OuroborosOptions, draft: CachedLM) -> None:
        self.vocab_size = draft.vocab_size
        self._options = options
        self._draft = draft
        self._entries = max(options.window, _LEAST_ENTRIES)
        guesses = max(options.window, options.suffixes)
        phrases = create(
            "lookahead", window=options.window, ngram=options.ngram, guesses=guesses, pool=self._entries, prompt_pool=False
        )
        self._phrases = cast("Lookahead", phrases)  # built by its name: a combination holds drafters, it imports none
        self._warm = NgramPool(self._entries, _WARM_KEYS) if options.warm or options.pool is not None else None
        self._kept: KeptPool | None = None
        if self._warm is not None and options.pool is not None:
            cold = options.bad_pool == "cold"
            self._kept = KeptPool(options.pool, self._warm, options.ngram - 1, self.vocab_size, cold)
            weakref.finalize(self, self._kept.save_changes)  # at the latest when the process ends
        self._shadows: dict[int, _Shadow] = {}

    @classmethod
    def build(cls, options: OuroborosOptions, draft: CachedLM) -> Ouroboros:
        """From its options and the draft model."""
        return cls(options, draft)

    @property
    def forward_seconds(self) -> float:
        """Seconds spent in the draft model."""
        return self._draft.forward_seconds

    def start(self, seq: Sequence) -> None:
        """Open the shadow. A prompt beyond the draft's context gets none, and no drafts."""
        context = self._draft.context_length
        if len(seq) > context:
            return
        self._draft.reserve(0, min(seq.max_length, context) + self._options.gamma + 2 * self._phrases.most_nodes)
        params = replace(seq.params, max_new_tokens=context, stop=())
        shadow = Sequence(seq.token_ids, params, eos_token_ids=seq.eos_token_ids, max_length=context)
        self._draft.open(shadow)
        pool = NgramPool(self._entries) if self._warm is None else self._warm
        self._phrases.start(shadow, pool)
        if self._kept is not None:
            self._kept.changed = True
        self._shadows[seq.id] = _Shadow(shadow, len(seq), pool)

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
            raise ConfigError("ouroboros: there is no file to save the pool to; choose one with pool=PATH.")
        self._kept.save()

    def propose(self, seqs: Seq[Sequence], max_nodes: list[int]) -> list[DraftTree]:
        """Draft for every sequence, all sequences together in each draft forward."""
        trees = [EMPTY_TREE] * len(seqs)
        if len(seqs) > 1:
            share = max(self._options.gamma + self._options.ngram - 1, _SHARED_NODES // len(seqs))
            max_nodes = [min(limit, share) for limit in max_nodes]
        rows = []
        for row, (seq, limit) in enumerate(zip(seqs, max_nodes, strict=True)):
            shadow = self._shadows.get(seq.id)
            if shadow is not None:
                shadow.proposal = Proposal()
                shadow.goal = min(self._options.gamma, limit, seq.remaining - 1, self._draft.context_length - len(seq))
                if shadow.goal > 0:
                    rows.append(row)
                    self._catch_up(seq, shadow)
        self._draft_phrases([self._shadows[seqs[row].id] for row in rows])
        for row in rows:
            seq, shadow = seqs[row], self._shadows[seqs[row].id]
            seq.counters.draft_forwards = shadow.seq.counters.target_forwards
            trees[row] = self._tree(seq, shadow, max_nodes[row])
        return trees

    def observe(self, outcomes: Seq[Outcome]) -> None:
        """Teach the pool what the target said about every tree."""
        options = self._options
        for outcome in outcomes:
            shadow = self._shadows.get(outcome.seq.id)
            if shadow is None or not outcome.tree.token_ids:
                continue
            whole = outcome.tree is shadow.proposal.tree  # else this target takes chains, and got the deepest branch
            if options.refinement and whole and shadow.proposal.suffixes:
                refine(shadow.pool, outcome, shadow.proposal, options.ngram)
            for context, phrase in inspirations(outcome, shadow.proposal.chain, options.inspiration, options.ngram):
                shadow.pool.add(context, phrase)

    def _catch_up(self, seq: Sequence, shadow: _Shadow) -> None:
        """Give the shadow the target's tokens, and the pool their n-grams."""
        shadow.catch_up(self._draft, seq.token_ids)
        shadow.seq.finish_reason = None
        shadow.pool.add_text(seq.token_ids, shadow.pooled, self._options.ngram)
        shadow.pooled = len(seq)
        shadow.chance, shadow.choices = 1.0, []

    def _draft_phrases(self, shadows: list[_Shadow]) -> None:
        """Draft until every shadow has reached its goal; those that have run along, as rows of one batch."""
        seqs = [shadow.seq for shadow in shadows]
        note = partial(self._verify, {shadow.seq.id: shadow for shadow in shadows})
        least = (self._options.ngram - 1) * (self._options.window + 1) - 1  # the window, and a phrase
        most = max(least, self._phrases.most_nodes // max(1, len(seqs)))
        while any(shadow.open for shadow in shadows):
            limits = [most if shadow.open else 0 for shadow in shadows]
            decode_step(self._draft, self._phrases, seqs, limits, note)

    def _verify(self, shadows: dict[int, _Shadow], seqs: Seq[Sequence], trees: Seq[DraftTree], logits: Tensor) -> list[Outcome]:
        """The draft model's own step; beside it, note what else it might have said."""
        outcomes = verify(seqs, trees, logits)
        if self._options.branches:
            for row, outcome in enumerate(outcomes):
                shadow = shadows[outcome.seq.id]
                if shadow.open:
                    said = [0, *(node + 1 for node in outcome.accepted)][: len(outcome.new_token_ids)]
                    _note_choices(shadow, outcome.new_token_ids, logits[row, said])
        return outcomes

    def _tree(self, seq: Sequence, shadow: _Shadow, limit: int) -> DraftTree:
        """The drafted chain, suffixes behind it, phrases behind the root, and the draft's further choices."""
        options = self._options
        depth = min(limit, seq.remaining - 1)
        chain = shadow.drafted[:depth]
        builder = TreeBuilder(limit)
        last = builder.add_path(chain)
        shadow.proposal = Proposal(chain=len(chain))
        if shadow.seq.finish_reason is None:
            for phrase in self._phrases.phrases(shadow.seq, seq.token_ids[-1:] + chain, options.suffixes):
                nodes, node = [], last
                for token in phrase[: depth - len(chain)]:
                    if (node, token) not in builder and len(builder) >= limit:
                        break
                    node = builder.add(token, node)
                    nodes.append(node)
                shadow.proposal.suffixes.append((phrase, nodes))
        text = seq.token_ids[-2:] + chain
        for choice in sorted(shadow.choices, reverse=True)[: options.branches]:
            if choice.place < len(chain):
                before = text[len(text) - len(chain) + choice.place - 1]
                follow = next(iter(self._phrases.phrases(shadow.seq, [before, choice.token], 1)), ())
                # No deeper than the chain: where the target takes chains only, the chain is what it gets.
                builder.add_path((choice.token, *follow)[: len(chain) - choice.place], choice.place - 1)
        if options.branches:
            for phrase in self._phrases.phrases(shadow.seq, seq.token_ids, options.suffixes):
                builder.add_path(phrase[: len(chain)])
        shadow.proposal.tree = builder.build()
        return shadow.proposal.tree


def _note_choices(shadow: _Shadow, run: list[int], scores: Tensor) -> None:
    """Add the likeliest other tokens in the places of `run`, by scores [len(run), vocab], to the choices of `shadow`."""
    probs = scores.float().softmax(-1)
    top = probs.topk(min(_CHOICES, probs.shape[-1]), dim=-1)
    own = probs[torch.arange(len(run)), torch.tensor(run, device=probs.device)].tolist()
    first = len(shadow.seq) - shadow.agreed
    for place, (said, tokens, values) in enumerate(zip(run, top.indices.tolist(), top.values.tolist(), strict=True), first):
        for token, value in zip(tokens, values, strict=True):
            if token != said and shadow.chance * value >= _LEAST_CHANCE:
                shadow.choices.append(_Choice(shadow.chance * value, place, token))
        shadow.chance *= own[place - first]
