"""Estimate how often the target accepts a draft model's first choices.

A first choice is the token that the draft model itself generates after a node.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from paceline.core.drafter import Outcome
from paceline.draft_budget.acceptance_counts import AcceptanceCounts
from paceline.drafters.draft_model.settings import BUCKETS, PRIOR_POWER, PRIOR_TRIALS
from paceline.drafters.shared.trees import tried


def first_choice_prior(prob: float) -> float:
    """Return the prior acceptance rate of a draft model's first choice.

    A first choice is the token that the draft model itself generates after a node.

    Args:
        prob: The draft model's probability of the token.
    """
    return math.pow(prob, PRIOR_POWER)


class DraftCalibration:
    """Counts how often first choices are accepted, grouped by their probability.

    A first choice is the token that the draft model itself generates after a node. First choices
    are accepted more often than their probabilities suggest, especially with a greedy target. The
    prior estimate is therefore a power of the probability. The exponent was fitted to pairs of a
    draft model and a target. As outcomes are counted, the counts gradually replace the prior.
    """

    def __init__(self) -> None:
        self._counts = AcceptanceCounts(1, BUCKETS, PRIOR_TRIALS)

    def confidence(self, prob: float) -> float:
        """Return the estimated acceptance rate of a draft model's first choice.

        Args:
            prob: The draft model's probability of the token.
        """
        return self._counts.rate(first_choice_prior(prob), prob)

    def learn(self, outcome: Outcome, first_choice_probs: Sequence[float | None]) -> None:
        """Count how many of the draft model's first choices were accepted.

        Args:
            outcome: Outcome of verifying the tree.
            first_choice_probs: The draft model's probability of each node's token; None for nodes
                that are not first choices.
        """
        for node, accepted in tried(outcome):
            prob = first_choice_probs[node]
            if prob is not None:
                self._counts.count(accepted, prob)
