"""Speculative decoding with a small model that drafts a chain (Leviathan et al. 2023, Chen et al.
2023), or a tree.

What is different here: draws make a chain as in the papers (`shared/chains.py`); guesses, greedy
ones above all, make a tree (`guess_tree.py`), unless a length or a length rule is given. A tree has
as many nodes as the draft model's confidence is worth; of these the engine feeds what pays for its
forward.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from paceline.core.drafter import Outcome
from paceline.core.node_rule import NodeRule
from paceline.core.not_numbers import guess_tokens
from paceline.core.request import Request
from paceline.core.tree import EMPTY_TREE, DraftTree
from paceline.cpu.topk import likeliest
from paceline.drafters.draft_model.draft_calibration import DraftCalibration
from paceline.drafters.draft_model.draft_tree_builder import (
    CHOICES,
    LOOKED_UP,
    DraftForwardInput,
    GuessTree,
    NodePrediction,
)
from paceline.drafters.draft_model.options import MAX_NODES, DraftModelOptions
from paceline.drafters.shared.chains import LOOKUP_LENGTH, ChainDrafter
from paceline.drafters.shared.length_rules import LengthRule
from paceline.drafters.shared.trees import outcome_of
from paceline.model.cached_lm import CachedLM
from paceline.model.reduced_vocabulary import kept_alone
from paceline.sampling import sampler

__all__ = ["DraftModel", "DraftModelOptions"]

# nodes of each sequence of a batch, at least: together they have as many as one sequence alone
_FEWEST = 3


@dataclass(slots=True)
class _Record:
    """What has been learned about a sequence's trees.

    Attributes:
        rates: how often the draft was right here so far.
        tree: the newest one, likeliest paths first; empty for a chain.
        first_choice_probs: per node of it, the probability it had as a first choice.
        likely: what others guess in this step.
    """

    rates: DraftCalibration = field(default_factory=DraftCalibration)
    tree: DraftTree = EMPTY_TREE
    first_choice_probs: list[float | None] = field(default_factory=list)
    likely: DraftTree = EMPTY_TREE


class DraftModel(ChainDrafter):
    """Drafts chains, and trees where that is allowed.

    Args:
        options: how to draft.
        draft: the draft model.
        rule: a length rule in place of the one the options name; drafts are chains then.
    """

    name = "draft_model"
    needs_draft_model = True
    Options = DraftModelOptions

    def __init__(
        self, options: DraftModelOptions, draft: CachedLM, rule: LengthRule | None = None
    ) -> None:
        spare = max(options.draft_limit, MAX_NODES) + LOOKED_UP * LOOKUP_LENGTH
        super().__init__(
            draft, rule or options.length_rule(), options.verification, options.looks_up, spare
        )
        self._options = options
        self._grows = rule is None and options.min_branch_confidence < 1 and draft.takes_trees
        self.budget = rule is None and options.has_budget
        if rule is None and options.adapts_length:
            self.node_rule = NodeRule(MAX_NODES, batch=MAX_NODES, least=_FEWEST)
        self._records: dict[int, _Record] = {}

    @classmethod
    def build(cls, options: DraftModelOptions, draft: CachedLM) -> DraftModel:
        """Build it from its options and the draft model."""
        return cls(options, draft)

    def start(self, request: Request) -> None:
        """Open the shadow; nothing is known about its trees."""
        super().start(request)
        self._records[request.id] = _Record()

    def seed_trees(self, request: Request, tree: DraftTree) -> None:
        """Have the next draft begin with what the draft model says to others' guesses: one
        forward more goes further then.
        """
        self._records[request.id].likely = tree

    def stop(self, request: Request) -> None:
        """Close the shadow and forget."""
        super().stop(request)
        self._records.pop(request.id, None)

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        """Learn how often guesses come true."""
        super().observe(outcomes)
        for outcome in outcomes:
            record = self._records.get(outcome.request.id)
            if record is not None and record.tree.token_ids:
                record.rates.learn(outcome_of(record.tree, outcome), record.first_choice_probs)

    def _draft_trees(
        self, requests: list[Request], limits: list[int], max_nodes: list[int]
    ) -> list[DraftTree]:
        """Grow trees for sequences that may have one, then draft chains for the others."""
        branching = [self._grows and not self.draws(request) for request in requests]
        sizes = [
            limit if branches else 0 for limit, branches in zip(max_nodes, branching, strict=True)
        ]
        grown = self._grow_trees(requests, limits, sizes)
        chains = self._draft_chains(
            requests,
            [0 if branches else limit for limit, branches in zip(limits, branching, strict=True)],
        )
        trees = []
        for request, branches, tree, chain in zip(requests, branching, grown, chains, strict=True):
            record = self._records[request.id]
            record.tree, record.first_choice_probs = (
                tree.finished() if branches else (EMPTY_TREE, [])
            )
            trees.append(record.tree if branches else chain)
        return trees

    def _grow_trees(
        self, requests: list[Request], longest: list[int], sizes: list[int]
    ) -> list[GuessTree]:
        """Grow a tree of at most so many nodes for every sequence; those that are finished, or have
        none, run along.

        Nothing drafted stays in the draft's cache: every forward is fed the root and the tree anew.
        """
        options = self._options
        trees = [
            GuessTree(
                self._records[request.id].rates,
                size,
                depth,
                options.min_branch_confidence,
                options.tree_stop_threshold,
            )
            for request, size, depth in zip(requests, sizes, longest, strict=True)
        ]
        shadows = [self._shadows[request.id] for request in requests]
        likely = [self._records[request.id].likely for request in requests]
        copies = [shadow.request for shadow in shadows]
        while any(newest := [tree.newest() for tree in trees]):
            questions = [
                tree.question(nodes, partial(self._continuation, shadow), others) if nodes else None
                for tree, nodes, shadow, others in zip(trees, newest, shadows, likely, strict=True)
            ]
            for tree, question, answer in zip(
                trees, questions, self._answers(copies, questions), strict=True
            ):
                if question:
                    tree.learn_answers(question, answer)
            self._draft.commit([()] * len(copies))
            for copy in copies:
                self._draft.rewind(copy, len(copy) - 1)
        return trees

    def _answers(
        self, copies: list[Request], questions: list[DraftForwardInput | None]
    ) -> list[list[NodePrediction]]:
        """Return what the draft model says at the places asked about."""
        fed = [question.tree if question else EMPTY_TREE for question in questions]
        if not sampler.is_greedy(copies):
            return adjusted_answers(self._draft.forward(copies, fed), copies, fed, questions)
        with kept_alone():
            logits = self._draft.forward(copies, fed)
        return greedy_answers(logits, questions, self._draft.kept_ids)


def greedy_answers(
    logits: Tensor,
    questions: list[DraftForwardInput | None],
    kept_ids: NDArray[np.int64] | None = None,
) -> list[list[NodePrediction]]:
    """Return what a draft model says at the places asked about, by its logits as they are.

    Args:
        logits: [batch, 1 + width, kept], after the root and each node fed. kept_ids: [kept]; None =
            the whole vocabulary.
    """
    answers = []
    for own, question in zip(logits, questions, strict=True):
        places, probs = likeliest(own[question.asked if question else []], CHOICES)
        token_ids = places if kept_ids is None else kept_ids[places]
        said = zip(token_ids.tolist(), probs.tolist(), strict=True)
        answers.append([NodePrediction(tokens[0], tokens, chances) for tokens, chances in said])
    return answers


def adjusted_answers(
    logits: Tensor,
    copies: list[Request],
    fed: list[DraftTree],
    questions: list[DraftForwardInput | None],
) -> list[list[NodePrediction]]:
    """Return what a draft model says at the places asked about, by what sampling makes of its
    logits.

    Args:
        logits: [batch, 1 + width, vocab], after the root and each node fed.
    """
    scores = sampler.target_scores(logits, copies, fed)
    drawn = guess_tokens(copies, sampler.draw(scores, copies, fed, sampler.TARGET))
    answers = []
    for own, said, question in zip(scores, drawn, questions, strict=True):
        asked = question.asked if question else []
        token_ids, probs = likeliest(own[asked], CHOICES)
        choices = [said[place] for place in asked]
        answers.append(
            [
                NodePrediction(*one)
                for one in zip(choices, token_ids.tolist(), probs.tolist(), strict=True)
            ]
        )
    return answers
