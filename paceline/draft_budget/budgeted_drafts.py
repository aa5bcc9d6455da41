"""Track how one drafter's trees are cut in a step, and what they cost and gain."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, chain

import numpy as np

from paceline.core.drafter import Outcome
from paceline.core.flat_trees import FlatTrees, flatten_trees
from paceline.core.request import Request
from paceline.core.tree import DraftTree
from paceline.draft_budget.acceptance_calibration import count
from paceline.draft_budget.drafts import DrafterState, Drafts


class BudgetedDrafts:
    """The drafts of one drafter in a step; the draft budget may cut their trees.

    Args:
        proposed: The drafts as the drafter proposed them.
    Attributes:
        proposed: The drafts as the drafter proposed them.
        trees: Draft trees that the target verifies, one per ready request.
        flat: The proposed trees as arrays, if the budget may cut the trees; otherwise None.
        cost: Duration of the step with the trees, as a multiple of the duration without the trees.
            The cost includes the time that a draft model has taken, even if the budget has cut all
            nodes. 0 if `DraftingBackoff` does not need the cost.
    """

    def __init__(self, proposed: Drafts) -> None:
        self.proposed = proposed
        self.trees: Sequence[DraftTree] = proposed.trees
        self.cost = 0.0
        self.flat: FlatTrees | None = None
        if proposed.state.stats is not None:
            self.flat = proposed.flat
            if self.flat is None and _can_be_cut(proposed.trees):
                self.flat = flatten_trees(proposed.trees)

    @property
    def state(self) -> DrafterState:
        """Return the drafter and its statistics."""
        return self.proposed.state

    @property
    def cut_drafts(self) -> Drafts:
        """Return the drafts, with their trees cut to the nodes that the target verifies."""
        proposed = self.proposed
        return Drafts(proposed.batch, proposed.ready, self.trees, proposed.draft_seconds)

    @property
    def ready(self) -> Sequence[Request]:
        """Return the requests to which the trees belong."""
        return self.proposed.ready

    def cut_to(self, num_nodes: Sequence[int]) -> None:
        """Cut each tree to its first nodes.

        Args:
            num_nodes: For each tree, the maximum number of nodes that remain.
        """
        self.trees = [
            tree if len(tree.token_ids) <= count else tree.first(count)
            for tree, count in zip(self.proposed.trees, num_nodes, strict=True)
        ]

    @property
    def width(self) -> int:
        """Return the number of nodes in the largest tree."""
        return max([len(tree.token_ids) for tree in self.trees], default=0)

    def learn(self, outcomes: Sequence[Outcome], all_tokens: int) -> None:
        """Update the drafter's statistics with the outcomes of the step.

        Args:
            outcomes: Outcomes of the ready requests.
            all_tokens: Total number of new tokens in the step, from all drafters.
        """
        stats = self.state.stats
        if stats is None or not outcomes:
            return
        emitted = [outcome.new_token_ids for outcome in outcomes]
        if self.flat is not None:
            ends = np.array([0, *accumulate(map(len, emitted))], dtype=np.int64)
            new_tokens = np.array(list(chain.from_iterable(emitted)), dtype=np.int64)
            count(stats.acceptance_calibration, self.flat, new_tokens, ends)
        if self.flat is not None and not self.state.drafter.needs_draft_model:
            stats.gate.note_cut(self.width)
        elif self.cost:
            # Without these drafts, each request would have got one token.
            without = all_tokens - sum(map(len, emitted)) + len(outcomes)
            num_drafted = sum(bool(tree.token_ids) for tree in self.trees)
            stats.gate.note(1 + _drafted_gain(outcomes) / without, self.cost, num_drafted)


def _can_be_cut(trees: Sequence[DraftTree]) -> bool:
    return any(tree.token_ids for tree in trees) and all(
        tree.probs is None and (tree.confidence is not None or not tree.token_ids) for tree in trees
    )


def _drafted_gain(outcomes: Sequence[Outcome]) -> float:
    """Return the number of tokens that drafts added to a step.

    The result is n * (m - 1) for n requests with drafts, where m is the harmonic mean of their
    token counts. For example, if two requests got 1 and 4 tokens, then m = 2 / (1/1 + 1/4) = 1.6,
    and the result is 1.2.

    The harmonic mean gives little weight to drafts that help only one request. Such drafts let this
    request end earlier, but hardly shorten the steps of the remaining requests.
    """
    drafted = [outcome for outcome in outcomes if len(outcome.tree)]
    if not drafted:
        return 0.0
    return len(drafted) * (
        len(drafted) / sum(1 / len(outcome.new_token_ids) for outcome in drafted) - 1
    )
