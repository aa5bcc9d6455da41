"""Speculative decoding with a small model that drafts a chain, or a tree.

Leviathan et al. 2023 and Chen et al. 2023. Greedy sequences get guesses; sampled ones get draws with their
distributions (`verification="reject"`), or, with `verification="follow"`, guesses drawn with the target's own keyed noise, which
agree with it often and keep the text of a seed. Draws make a chain; guesses make a tree (`draft_tree.py`), unless a
length is given.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from functools import partial

from torch import Tensor

from paceline import sampling
from paceline.drafter import Drafter, Outcome
from paceline.drafters.draft_options import MOST_NODES, DraftModelOptions
from paceline.drafters.draft_tree import CHOICES, LOOKED_UP, GuessTree, HitRates
from paceline.drafters.ngram_index import NgramIndex
from paceline.drafters.shadow import Shadow
from paceline.model import CachedLM
from paceline.sequence import Sequence
from paceline.tree import EMPTY_TREE, DraftTree
from paceline.verify import follow

__all__ = ["DraftModel", "DraftModelOptions"]

_FEWEST = 3  # nodes of each sequence of a batch, at least: they share as many as one sequence may have
_LOOKUP_NGRAMS = (1, 3)  # shortest and longest n-gram looked up for the draft model
_LOOKUP_LENGTH = 8


@dataclass(slots=True)
class _Shadow(Shadow):
    """What a sequence owns here.

    Attributes:
        index: where n-grams of the target's tokens occurred.
        rates: how often the draft was right here so far.
        first_probs: per node of the newest tree, the probability it had as a first choice; empty for a chain.
    """

    index: NgramIndex
    rates: HitRates = field(default_factory=HitRates)
    first_probs: list[float | None] = field(default_factory=list)


@dataclass(slots=True)
class _Chain:
    """What one sequence has drafted in this step: tokens, and per token what its place was drawn from, if needed."""

    shadow: _Shadow
    limit: int
    open: bool
    chance: float = 1.0  # that all of it is right, by the draft's own top probabilities
    tokens: list[int] = field(default_factory=list)
    probs: list[Tensor | None] = field(default_factory=list)  # [vocab] each


class DraftModel(Drafter):
    """Owns a `CachedLM` that holds a shadow of every sequence."""

    name = "draft_model"
    Options = DraftModelOptions

    def __init__(self, options: DraftModelOptions, draft: CachedLM) -> None:
        self.vocab_size = draft.vocab_size
        self._options = options
        self._draft = draft
        self._shadows: dict[int, _Shadow] = {}

    @classmethod
    def build(cls, options: DraftModelOptions, draft: CachedLM) -> DraftModel:
        """From its options and the draft model."""
        return cls(options, draft)

    @property
    def forward_seconds(self) -> float:
        """Seconds spent in the draft model."""
        return self._draft.forward_seconds

    def start(self, seq: Sequence) -> None:
        """Open the shadow. A prompt beyond the draft's context gets none, and no drafts."""
        if len(seq) <= self._draft.context_length:
            spare = max(self._options.longest, MOST_NODES) + LOOKED_UP * _LOOKUP_LENGTH
            self._draft.reserve(0, min(seq.max_length, self._draft.context_length) + spare)
            shadow = Sequence(seq.token_ids, seq.params)
            self._draft.open(shadow)
            self._shadows[seq.id] = _Shadow(shadow, len(seq), NgramIndex(*_LOOKUP_NGRAMS))

    def stop(self, seq: Sequence) -> None:
        """Close the shadow."""
        shadow = self._shadows.pop(seq.id, None)
        if shadow is not None:
            self._draft.close(shadow.seq)

    def propose(self, seqs: Seq[Sequence], max_nodes: list[int]) -> list[DraftTree]:
        """Draft for every sequence, all sequences together in each draft forward."""
        trees = [EMPTY_TREE] * len(seqs)
        if self._options.length is None:
            share = max(_FEWEST, MOST_NODES // len(seqs))
            max_nodes = [min(limit, share) for limit in max_nodes]
        rows = [row for row, seq in enumerate(seqs) if seq.id in self._shadows]
        limits = [self._length(seqs[row], max_nodes[row]) for row in rows]
        if not any(limit > 0 for limit in limits):
            return trees
        for row in rows:
            self._catch_up(seqs[row])
        shadows = [self._shadows[seqs[row].id] for row in rows]
        self._prefill([shadow.seq for shadow in shadows])
        branching = [self._branches(seqs[row]) for row in rows]
        sizes = [max_nodes[row] if branches else 0 for row, branches in zip(rows, branching, strict=True)]
        grown = self._grow_trees(shadows, limits, sizes)
        chains = [
            _Chain(shadow, limit, open=limit > 0 and not branches)
            for shadow, limit, branches in zip(shadows, limits, branching, strict=True)
        ]
        self._draft_chains(chains)
        for row, shadow, chain, tree, branches in zip(rows, shadows, chains, grown, branching, strict=True):
            seqs[row].counters.draft_forwards = shadow.seq.counters.target_forwards
            trees[row], shadow.first_probs = tree.finished() if branches else (self._as_tree(chain), [])
        return trees

    def observe(self, outcomes: Seq[Outcome]) -> None:
        """Learn how often guesses come true."""
        for outcome in outcomes:
            shadow = self._shadows.get(outcome.seq.id)
            if shadow is not None and len(shadow.first_probs) == len(outcome.tree):
                shadow.rates.learn(outcome.tree, shadow.first_probs, outcome.accepted)

    def _prefill(self, shadows: list[Sequence]) -> None:
        """Feed long prompts in chunks, but for the last."""
        while late := [shadow for shadow in shadows if not self._draft.reaches_end(shadow)]:
            self._draft.feed(late)

    def _grow_trees(self, shadows: list[_Shadow], longest: list[int], sizes: list[int]) -> list[GuessTree]:
        """Grow a tree of at most so many nodes for every sequence; those that are finished, or have none, run along.

        Nothing drafted stays in the draft's cache: every forward is fed the root and the tree anew.
        """
        options = self._options
        trees = [
            GuessTree(shadow.rates, size, depth, options.branch_chance, options.tree_chance)
            for shadow, size, depth in zip(shadows, sizes, longest, strict=True)
        ]
        seqs = [shadow.seq for shadow in shadows]
        while any(newest := [tree.newest() for tree in trees]):
            questions = [
                tree.question(nodes, partial(self._continuation, shadow)) if nodes else None
                for tree, nodes, shadow in zip(trees, newest, shadows, strict=True)
            ]
            fed = [question.tree if question else EMPTY_TREE for question in questions]
            scores = sampling.target_scores(self._draft.forward(seqs, fed), seqs, fed)
            drawn = sampling.draw(scores, seqs, fed, sampling.TARGET)
            for row, (tree, question) in enumerate(zip(trees, questions, strict=True)):
                if question:
                    top = scores[row, question.asked].softmax(-1).topk(min(CHOICES, self._draft.vocab_size), dim=-1)
                    choices = [drawn[row][place] for place in question.asked]
                    tree.answer(question, list(zip(choices, top.indices.tolist(), top.values.tolist(), strict=True)))
            self._draft.commit([()] * len(seqs))
            for seq in seqs:
                self._draft.rewind(seq, len(seq) - 1)
        return trees

    def _draft_chains(self, chains: list[_Chain]) -> None:
        """Draft until every chain has reached its limit or is no longer sure.

        Those that have stopped run along, as rows of one batch; whether one stops never depends on what it would draw next.
        """
        shadows = [chain.shadow.seq for chain in chains]
        while any(chain.open for chain in chains):
            guesses = [self._look_up(chain) for chain in chains]
            scores = sampling.target_scores(self._draft.forward(shadows, guesses), shadows, guesses)
            stream = sampling.TARGET if self._options.verification == "follow" else sampling.DRAFT
            drawn = sampling.draw(scores, shadows, guesses, stream)
            kept = [
                self._grow(chain, *_walk(guess, drawn[row], chain), scores[row])
                for row, (chain, guess) in enumerate(zip(chains, guesses, strict=True))
            ]
            self._draft.commit(kept)

    def _look_up(self, chain: _Chain) -> DraftTree:
        """A guess of what the draft model will say, so that it says more in one forward."""
        room = chain.limit - len(chain.tokens) - 1
        return DraftTree.chain(self._continuation(chain.shadow, [], room)) if chain.open else EMPTY_TREE

    def _continuation(self, shadow: _Shadow, path: list[int], room: int) -> list[int]:
        """Up to `room` tokens that followed the shadow's text and `path` earlier."""
        if not self._options.looks_up or room <= 0:
            return []
        return shadow.index.continuation(shadow.seq.token_ids + path, min(_LOOKUP_LENGTH, room))

    def _grow(self, chain: _Chain, accepted: list[int], run: list[int], scores: Tensor) -> list[int]:
        """Add a run of the draft model to its shadow and chain, up to where it is no longer sure.

        Args:
            accepted: the looked-up nodes on the run's path; scores: [1 + nodes, vocab], after the root and each of them.
        Returns:
            the nodes to commit: the run's newest token stays pending.
        """
        options = self._options
        if chain.open:
            if options.chain_chance > 0 or self._draws(chain.shadow.seq):
                probs = scores[[0, *(node + 1 for node in accepted)][: len(run)]].softmax(-1)
                for place, highest in enumerate(probs.amax(-1).tolist()):
                    chain.chance *= highest
                    if chain.chance < options.chain_chance:
                        run = run[: place + 1]  # that token is kept
                        chain.open = False
                        break
                chain.probs.extend(probs[: len(run)])
            chain.tokens.extend(run)
            chain.open = chain.open and len(chain.tokens) < chain.limit
        chain.shadow.seq.token_ids.extend(run)
        return accepted[: len(run) - 1]

    def _draws(self, seq: Sequence) -> bool:
        """Whether drafts of `seq` come with their distributions."""
        return self._options.verification == "reject" and not seq.params.greedy

    def _branches(self, seq: Sequence) -> bool:
        """Whether drafts of `seq` are trees."""
        return self._options.branch_chance < 1 and self._draft.takes_trees and not self._draws(seq)

    def _as_tree(self, chain: _Chain) -> DraftTree:
        return DraftTree.chain(chain.tokens, chain.probs if self._draws(chain.shadow.seq) else None)

    def _length(self, seq: Sequence, limit: int) -> int:
        room = self._draft.context_length - len(seq)
        return min(self._options.longest, limit, seq.remaining - 1, room)

    def _catch_up(self, seq: Sequence) -> None:
        """Give the shadow the target's tokens, and the index."""
        shadow = self._shadows[seq.id]
        shadow.catch_up(self._draft, seq.token_ids)
        if self._options.looks_up:
            shadow.index.update(seq.token_ids)


def _walk(guess: DraftTree, drawn: list[int], chain: _Chain) -> tuple[list[int], list[int]]:
    """Accepted nodes and emitted tokens of the draft model on a looked-up guess; at least one token, at most the chain's room."""
    room = chain.limit - len(chain.tokens)
    return follow(guess, lambda node: drawn[node + 1], lambda run: len(run) >= room)
