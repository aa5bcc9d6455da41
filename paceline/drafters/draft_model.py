"""Speculative decoding with a small model that drafts a chain, or a tree.

Draws make a chain (`draft_chain.py`); guesses make a tree (`draft_tree.py`), unless a length or a length rule is given.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from functools import partial

from paceline import sampling
from paceline.drafter import Outcome
from paceline.drafters.draft_chain import LOOKUP_LENGTH, ChainDrafter
from paceline.drafters.draft_options import MOST_NODES, DraftModelOptions
from paceline.drafters.draft_tree import CHOICES, LOOKED_UP, GuessTree, HitRates
from paceline.drafters.length_rules import LengthRule
from paceline.model import CachedLM
from paceline.sequence import Sequence
from paceline.tree import EMPTY_TREE, DraftTree

__all__ = ["DraftModel", "DraftModelOptions"]

_FEWEST = 3  # nodes of each sequence of a batch, at least: they share as many as one sequence may have


@dataclass(slots=True)
class _Record:
    """What has been learned about a sequence's trees.

    Attributes:
        rates: how often the draft was right here so far.
        first_probs: per node of the newest tree, the probability it had as a first choice; empty for a chain.
    """

    rates: HitRates = field(default_factory=HitRates)
    first_probs: list[float | None] = field(default_factory=list)


class DraftModel(ChainDrafter):
    """Drafts chains, and trees where that is allowed.

    Args:
        rule: a length rule in place of the one the options name; drafts are chains then.
    """

    name = "draft_model"
    Options = DraftModelOptions

    def __init__(self, options: DraftModelOptions, draft: CachedLM, rule: LengthRule | None = None) -> None:
        spare = max(options.longest, MOST_NODES) + LOOKED_UP * LOOKUP_LENGTH
        super().__init__(draft, rule or options.length_rule(), options.verification, options.looks_up, spare)
        self._options = options
        self._grows = rule is None and options.branch_chance < 1 and draft.takes_trees
        self._shares = rule is None and options.shares
        self._records: dict[int, _Record] = {}

    @classmethod
    def build(cls, options: DraftModelOptions, draft: CachedLM) -> DraftModel:
        """From its options and the draft model."""
        return cls(options, draft)

    def start(self, seq: Sequence) -> None:
        """Open the shadow; nothing is known about its trees."""
        super().start(seq)
        self._records[seq.id] = _Record()

    def stop(self, seq: Sequence) -> None:
        """Close the shadow and forget."""
        super().stop(seq)
        self._records.pop(seq.id, None)

    def propose(self, seqs: Seq[Sequence], max_nodes: list[int]) -> list[DraftTree]:
        """Draft for every sequence; where no length is given, a batch shares the nodes one sequence may have."""
        if self._shares:
            share = max(_FEWEST, MOST_NODES // len(seqs))
            max_nodes = [min(limit, share) for limit in max_nodes]
        return super().propose(seqs, max_nodes)

    def observe(self, outcomes: Seq[Outcome]) -> None:
        """Learn how often guesses come true."""
        super().observe(outcomes)
        for outcome in outcomes:
            record = self._records.get(outcome.seq.id)
            if record is not None and len(record.first_probs) == len(outcome.tree):
                record.rates.learn(outcome.tree, record.first_probs, outcome.accepted)

    def _draft_trees(self, seqs: list[Sequence], limits: list[int], max_nodes: list[int]) -> list[DraftTree]:
        """Trees for sequences that may have one, then chains for the others."""
        branching = [self._grows and not self._draws(seq) for seq in seqs]
        sizes = [limit if branches else 0 for limit, branches in zip(max_nodes, branching, strict=True)]
        grown = self._grow_trees(seqs, limits, sizes)
        chains = self._draft_chains(seqs, [0 if branches else limit for limit, branches in zip(limits, branching, strict=True)])
        trees = []
        for seq, branches, tree, chain in zip(seqs, branching, grown, chains, strict=True):
            finished, self._records[seq.id].first_probs = tree.finished() if branches else (chain, [])
            trees.append(finished)
        return trees

    def _grow_trees(self, seqs: list[Sequence], longest: list[int], sizes: list[int]) -> list[GuessTree]:
        """Grow a tree of at most so many nodes for every sequence; those that are finished, or have none, run along.

        Nothing drafted stays in the draft's cache: every forward is fed the root and the tree anew.
        """
        options = self._options
        trees = [
            GuessTree(self._records[seq.id].rates, size, depth, options.branch_chance, options.tree_chance)
            for seq, size, depth in zip(seqs, sizes, longest, strict=True)
        ]
        shadows = [self._shadows[seq.id] for seq in seqs]
        copies = [shadow.seq for shadow in shadows]
        while any(newest := [tree.newest() for tree in trees]):
            questions = [
                tree.question(nodes, partial(self._continuation, shadow)) if nodes else None
                for tree, nodes, shadow in zip(trees, newest, shadows, strict=True)
            ]
            fed = [question.tree if question else EMPTY_TREE for question in questions]
            scores = sampling.target_scores(self._draft.forward(copies, fed), copies, fed)
            drawn = sampling.draw(scores, copies, fed, sampling.TARGET)
            for row, (tree, question) in enumerate(zip(trees, questions, strict=True)):
                if question:
                    top = scores[row, question.asked].softmax(-1).topk(min(CHOICES, self._draft.vocab_size), dim=-1)
                    choices = [drawn[row][place] for place in question.asked]
                    tree.answer(question, list(zip(choices, top.indices.tolist(), top.values.tolist(), strict=True)))
            self._draft.commit([()] * len(copies))
            for copy in copies:
                self._draft.rewind(copy, len(copy) - 1)
        return trees
