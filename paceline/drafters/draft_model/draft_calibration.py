"""How often a draft model's first choice came true, by the probability it gave."""

from __future__ import annotations

import math
from collections.abc import Sequence

from paceline.core.drafter import Outcome
from paceline.drafters.shared.trees import tried

_BUCKETS = 10
_PRIOR_WEIGHT = 4  # guesses
# measured on the embedded pair: first choices of 0.45, 0.65 and 0.85 were right in 0.61, 0.81 and
# 0.95
_PRIOR_POWER = 0.6


def first_choice_prior(prob: float) -> float:
    """Return the chance of a first choice that the draft model gave `prob`, before anything was
    counted.
    """
    return math.pow(prob, _PRIOR_POWER)


class DraftCalibration:
    """How often a draft model's first choice was right, by the probability it gave.

    It is right more often than that probability, above all where the target is greedy and never
    says its second choice. Where little is known, the confidence is taken as a power of the
    probability, which fits such pairs.
    """

    def __init__(self) -> None:
        self._offered = [0] * _BUCKETS
        self._hits = [0] * _BUCKETS

    def confidence(self, prob: float) -> float:
        """Return the estimated probability that a first choice is right which the draft model
        gave `prob`.
        """
        bucket = _bucket(prob)
        return (self._hits[bucket] + _PRIOR_WEIGHT * first_choice_prior(prob)) / (
            self._offered[bucket] + _PRIOR_WEIGHT
        )

    def learn(self, outcome: Outcome, first_choice_probs: Sequence[float | None]) -> None:
        """Take in what became of a tree.

        Args:
            first_choice_probs: per node of it the probability it was given, None where it was no
                first choice.
        """
        for node, right in tried(outcome):
            prob = first_choice_probs[node]
            if prob is not None:
                self._offered[_bucket(prob)] += 1
                self._hits[_bucket(prob)] += right


def _bucket(prob: float) -> int:
    return min(_BUCKETS - 1, int(prob * _BUCKETS))
