"""Draft chains or trees with a small model (Leviathan et al., Chen et al. 2023).

Sampled drafts are chains, as in the papers (`shared/chains.py`). Deterministic drafts, mainly for
greedy requests, are trees (`draft_tree_builder.py`), unless the options set a draft length or a
different stop rule. In that case, they are also chains. The draft model's confidence determines the
size of a tree. The engine then verifies the nodes that are expected to save time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from paceline.backend.resolve import topk_tokens
from paceline.core.drafter import Outcome
from paceline.core.node_logits import NodeLogits
from paceline.core.node_rule import NodeRule
from paceline.core.not_numbers import guess_tokens
from paceline.core.request import Request
from paceline.core.tree import EMPTY_TREE, DraftTree
from paceline.drafters.draft_model.draft_calibration import DraftCalibration
from paceline.drafters.draft_model.draft_tree_builder import (
    DraftForwardInput,
    GuessTree,
    NodePrediction,
)
from paceline.drafters.draft_model.options import DraftModelOptions
from paceline.drafters.draft_model.settings import CHOICES, LOOKED_UP, MAX_NODES, MIN_BATCH_NODES
from paceline.drafters.shared.chains import LOOKUP_LENGTH, ChainDrafter
from paceline.drafters.shared.length_rules import LengthRule
from paceline.drafters.shared.trees import outcome_of
from paceline.model.cached_lm import CachedLM
from paceline.sampling import sampler
from paceline.sampling.top_tokens import top_tokens_at
from paceline.util.device_copies import fetch, select_rows

__all__ = ["DraftModel", "DraftModelOptions"]


@dataclass(slots=True)
class _DraftedRequest:
    """The draft model's calibration and newest tree for one request.

    Attributes:
        calibration: Acceptance rates of the draft model's first choices. The first choice after a
            node is the token that the draft model itself would generate there.
        tree: Newest tree, most likely paths first; empty for a chain.
        first_choice_probs: For each node of the tree that is a first choice, the draft model's
            probability of the node's token; None for other nodes.
        likely: Tree that sources other than the draft model proposed in this step.
    """

    calibration: DraftCalibration = field(default_factory=DraftCalibration)
    tree: DraftTree = EMPTY_TREE
    first_choice_probs: list[float | None] = field(default_factory=list)
    likely: DraftTree = EMPTY_TREE


class DraftModel(ChainDrafter):
    """Drafts a tree or a chain per request with a draft model.

    Args:
        options: Options of the drafter.
        draft: Draft model to use.
        rule: Length rule to use instead of the rule in the options. If a rule is given, drafts are
            chains.
    """

    name = "draft_model"
    keeps_tokens = True
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
        self.other_tokenizer = options.other_tokenizer
        self._grows = rule is None and options.min_branch_confidence < 1 and draft.takes_trees
        self.budget = rule is None and options.has_budget
        if rule is None and options.adapts_length:
            self.node_rule = NodeRule(MAX_NODES, batch_nodes=MAX_NODES, min_nodes=MIN_BATCH_NODES)
        self._records: dict[int, _DraftedRequest] = {}

    @classmethod
    def build(cls, options: DraftModelOptions, draft: CachedLM) -> DraftModel:
        """Build the drafter from its options and the draft model."""
        return cls(options, draft)

    @property
    def shared_rate(self) -> float:
        """Return the fraction of the target's vocabulary that the draft model shares."""
        return self._draft.shared_rate

    def start(self, request: Request) -> None:
        """Create the draft model's copy of the request, and create a new calibration."""
        super().start(request)
        self._records[request.id] = _DraftedRequest()

    def seed_trees(self, request: Request, tree: DraftTree) -> None:
        """Seed the next draft with the nodes of a tree that other sources drafted.

        The draft model's first forward pass then predicts the next token after each of these nodes.
        """
        self._records[request.id].likely = tree

    def stop(self, request: Request) -> None:
        """Delete the draft model's copy of the request."""
        super().stop(request)
        self._records.pop(request.id, None)

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        """Update each request's measured acceptance rates with the outcome of the step."""
        super().observe(outcomes)
        for outcome in outcomes:
            record = self._records.get(outcome.request.id)
            if record is not None and record.tree.token_ids:
                record.calibration.learn(
                    outcome_of(record.tree, outcome), record.first_choice_probs
                )

    def _draft_trees(
        self, requests: list[Request], limits: list[int], max_nodes: list[int]
    ) -> list[DraftTree]:
        """Grow trees for the requests that allow trees; draft chains for the others."""
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
        self, requests: list[Request], max_depths: list[int], sizes: list[int]
    ) -> list[GuessTree]:
        """Grow one tree per request; each forward pass processes all requests.

        Each forward pass processes the root and the ancestors of the newest nodes again, because
        the draft model's KV cache stores no draft tokens.
        """
        options = self._options
        trees = [
            GuessTree(
                self._records[request.id].calibration,
                size,
                depth,
                options.min_branch_confidence,
                options.tree_stop_threshold,
            )
            for request, size, depth in zip(requests, sizes, max_depths, strict=True)
        ]
        shadows = [self._shadows[request.id] for request in requests]
        likely = [self._records[request.id].likely for request in requests]
        copies = [shadow.request for shadow in shadows]
        if self._draft.keeps_states and any(sizes):
            self._advance_states(copies)
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
            if not self._draft.keeps_states:
                self._draft.commit([()] * len(copies))
                for copy in copies:
                    self._draft.rewind(copy, len(copy) - 1)
        return trees

    def _advance_states(self, copies: list[Request]) -> None:
        """Process all pending tokens except for the newest one of each request.

        A recurrent state cannot be rewound, so it excludes the newest token while a tree grows.
        """
        behind = [copy for copy in copies if copy.pending > 1]
        newest = [copy.token_ids.pop() for copy in behind]
        try:
            if behind:
                self._draft.feed(behind)
        finally:
            for copy, token in zip(behind, newest, strict=True):
                copy.token_ids.append(token)

    def _answers(
        self, copies: list[Request], questions: list[DraftForwardInput | None]
    ) -> list[list[NodePrediction]]:
        """Return the draft model's predictions at the nodes whose next tokens are needed."""
        inputs = [question.tree if question else EMPTY_TREE for question in questions]
        if not sampler.is_greedy(copies):
            return adjusted_answers(self._draft.forward(copies, inputs), copies, inputs, questions)
        logits = self._draft.forward_nodes(copies, inputs, reduced_logits=True, num_top=CHOICES)
        return greedy_answers(logits, questions, self._draft.kept_ids)


def greedy_answers(
    logits: NodeLogits,
    questions: list[DraftForwardInput | None],
    kept_ids: NDArray[np.int64] | None = None,
) -> list[list[NodePrediction]]:
    """Return the draft model's most likely next tokens, ranked by its raw logits.

    Args:
        logits: Logits after the root and each processed node.
        questions: For each request, the nodes whose next tokens are needed; None if the request
            needs no prediction.
        kept_ids: Token ids of a reduced vocabulary, [kept]; None means the whole vocabulary.
    """
    nodes = [question.predicted if question else () for question in questions]
    top = top_tokens_at(logits, nodes, CHOICES, kept_ids)
    found = top.tokens(fetch(*top.tensors))
    likeliest = found.token_ids.tolist()
    choices = [tokens[0] for tokens in likeliest]
    return _by_request(questions, choices, likeliest, found.probs.tolist())


def adjusted_answers(
    logits: Tensor,
    copies: list[Request],
    inputs: list[DraftTree],
    questions: list[DraftForwardInput | None],
) -> list[list[NodePrediction]]:
    """Return the draft model's predictions after applying the sampling settings.

    Args:
        logits: Logits after the root and each processed node, [batch, 1 + width, vocab]; width is
            the number of nodes in the largest tree.
        copies: The draft model's copy of each request.
        inputs: For each request, the tree that the draft model has processed.
        questions: For each request, the nodes whose next tokens are needed; None if the request
            needs no prediction.
    """
    _, drawn, (columns, probs) = sampler.draw_tokens(
        logits,
        copies,
        inputs,
        others=lambda scores, tokens: topk_tokens(predicted_rows(scores, questions), CHOICES),
    )
    choices = [
        tokens[position]
        for tokens, question in zip(guess_tokens(copies, drawn), questions, strict=True)
        for position in (question.predicted if question else ())
    ]
    return _by_request(questions, choices, columns.tolist(), probs.tolist())


def predicted_rows(scores: Tensor, questions: Sequence[DraftForwardInput | None]) -> Tensor:
    """Return the scores at the nodes whose next tokens are needed, [nodes, vocab].

    Args:
        scores: Next-token scores after the root and each node, [batch, 1 + width, vocab]; width is
            the number of nodes in the largest tree.
        questions: For each request, the nodes whose next tokens are needed; None if the request
            needs no prediction.
    """
    width = scores.shape[1]
    rows = [
        row * width + position
        for row, question in enumerate(questions)
        for position in (question.predicted if question else ())
    ]
    return select_rows(scores.flatten(0, 1), rows)


def _by_request(
    questions: Sequence[DraftForwardInput | None],
    choices: Sequence[int],
    likeliest: Sequence[list[int]],
    probs: Sequence[list[float]],
) -> list[list[NodePrediction]]:
    """Build one prediction per requested node, and group the predictions by request."""
    predictions = map(NodePrediction, choices, likeliest, probs)
    return [
        list(islice(predictions, len(question.predicted) if question else 0))
        for question in questions
    ]
