"""Count accepted draft tokens by source and probability, in plain Python.

The counts estimate a draft token's acceptance rate. The estimate combines the observed rate with a
prior, which the drafter supplies for each token. In contrast, `AcceptanceCalibration` corrects a
drafter's confidence by the ratio of accepted to predicted tokens.
"""

from __future__ import annotations

from math import inf


class AcceptanceCounts:
    """Counts tried and accepted tokens of all requests, by source and probability.

    Args:
        num_groups: Number of sources of draft tokens, which are counted separately.
        num_buckets: Number of equally wide probability buckets per source.
        prior_trials: Weight of the prior acceptance rate, as a number of trials.
        memory: Number of trials in a bucket at which the bucket's counts are halved, so that older
            trials count less. By default, counts are never halved.
    """

    def __init__(
        self, num_groups: int, num_buckets: int, prior_trials: float, memory: float = inf
    ) -> None:
        self._num_buckets, self._prior_trials, self._memory = num_buckets, prior_trials, memory
        self._trials = [[0.0] * num_buckets for _ in range(num_groups)]
        self._hits = [[0.0] * num_buckets for _ in range(num_groups)]

    def rate(self, prior: float, prob: float, group: int = 0) -> float:
        """Return a token's estimated acceptance rate.

        Args:
            prior: Acceptance rate assumed before any outcomes are counted.
            prob: Probability of the token according to its source; from 0 to 1.
            group: Index of the source.
        """
        bucket = self._bucket(prob)
        return (self._hits[group][bucket] + self._prior_trials * prior) / (
            self._trials[group][bucket] + self._prior_trials
        )

    def count(self, accepted: bool, prob: float, group: int = 0) -> None:
        """Count one trial of a token; see `rate` for the arguments."""
        bucket, trials, hits = self._bucket(prob), self._trials[group], self._hits[group]
        if trials[bucket] >= self._memory:
            trials[bucket], hits[bucket] = trials[bucket] / 2, hits[bucket] / 2
        trials[bucket] += 1
        hits[bucket] += accepted

    def _bucket(self, prob: float) -> int:
        return min(self._num_buckets - 1, int(prob * self._num_buckets))
