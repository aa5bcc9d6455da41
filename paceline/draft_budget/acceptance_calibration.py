"""Calibrate a drafter's confidences with counts of accepted draft tokens.

The confidences are grouped into ranges, called buckets. A node counts as tried once the target has
chosen the token after the node's parent, whether or not the engine verified the node itself.
Example for one drafter, with the mean confidence and the acceptance rate of each bucket:

    bucket       0.25-0.4   0.4-0.55   0.55-0.7
    predicted       0.33       0.48       0.62
    accepted        0.30       0.55       0.81     (of 212, 180, 95 trials)
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from paceline.core.flat_trees import FlatTrees, Floats
from paceline.core.tree import IntArray
from paceline.draft_budget.settings import DEFAULTS, DraftBudgetSettings
from paceline.util.compiled import compiled, kernel


class AcceptanceCalibration(NamedTuple):
    """Counts of trials and accepted tokens for each range of confidences (bucket).

    Attributes:
        edges: Confidences that separate the buckets, [buckets - 1], in ascending order.
        predicted: Sum of the confidences of the tried nodes, [buckets].
        trials: Number of tried nodes, [buckets].
        hits: Number of accepted nodes, [buckets].
        prior_trials: Weight of the drafter's own confidence, as a number of trials.
        memory: Number of trials in a bucket at which the bucket's counts are halved, so that newer
            trials count more.
    """

    edges: Floats
    predicted: Floats
    trials: Floats
    hits: Floats
    prior_trials: float
    memory: float


def new_calibration(settings: DraftBudgetSettings = DEFAULTS) -> AcceptanceCalibration:
    """Return an empty calibration."""
    num_buckets = len(settings.bucket_edges) + 1
    predicted, trials, hits = (np.zeros(num_buckets) for _ in range(3))
    return AcceptanceCalibration(
        np.array(settings.bucket_edges),
        predicted,
        trials,
        hits,
        float(settings.prior_trials),
        float(settings.calibration_memory),
    )


@kernel
def bucket_of(edges: Any, value: float) -> int:
    """Return the index of a value's bucket, which is the number of edges <= the value."""
    bucket = 0
    for edge in edges:
        bucket += value >= edge
    return bucket


@kernel
def count_trial(hits: Floats, trials: Floats, index: int, accepted: bool, memory: float) -> None:
    """Count one tried token in a table of hits (accepted tokens) and trials.

    Args:
        hits: Number of accepted tokens for each entry of the table.
        trials: Number of tried tokens for each entry of the table.
        index: Index of the entry that counts the token.
        accepted: Whether the target accepted the token.
        memory: Number of trials in an entry at which the entry's counts are halved, so that newer
            trials count more.
    """
    if trials[index] >= memory:
        trials[index] *= 0.5
        hits[index] *= 0.5
    trials[index] += 1.0
    hits[index] += 1.0 if accepted else 0.0


@kernel
def corrected(calibration: AcceptanceCalibration, confidence: float) -> float:
    """Correct a confidence by the acceptance rate at similar confidences.

    If the sums of the confidence's bucket are `hits` and `predicted`, the result is

        confidence * (prior + hits) / (prior + predicted), at most 1

    where prior = prior_trials * confidence. Without any trials, the confidence does not change.
    """
    bucket = bucket_of(calibration.edges, confidence)
    prior = calibration.prior_trials * confidence
    probability: float = min(
        1.0,
        confidence
        * (prior + calibration.hits[bucket])
        / max(prior + calibration.predicted[bucket], 1e-9),
    )
    return probability


@compiled
def path_probabilities(calibration: AcceptanceCalibration, trees: FlatTrees) -> Floats:
    """Return the calibrated path probability of each node."""
    result = np.empty(len(trees.parents))
    _fill_path_probabilities(calibration, trees, result)
    return result


@compiled
def add_path_probabilities(
    calibration: AcceptanceCalibration, trees: FlatTrees, gains: Floats
) -> None:
    """Sum the calibrated path probabilities over all trees, for each node index.

    Args:
        calibration: Counts of the drafter.
        trees: Trees of the drafter.
        gains: Running sums, updated in place, [1 + nodes of the largest tree]. Entry 1 + i is the
            sum for node i over all trees.
    """
    paths = np.empty(len(trees.parents))
    _fill_path_probabilities(calibration, trees, paths)
    for tree in range(len(trees.starts) - 1):
        first = trees.starts[tree]
        for node in range(first, trees.starts[tree + 1]):
            gains[1 + node - first] += paths[node]


@kernel
def _fill_path_probabilities(
    calibration: AcceptanceCalibration, trees: FlatTrees, result: Floats
) -> None:
    for tree in range(len(trees.starts) - 1):
        first = trees.starts[tree]
        for node in range(first, trees.starts[tree + 1]):
            above = trees.parents[node]
            probability = corrected(calibration, trees.confidence[node])
            result[node] = probability if above < 0 else probability * result[first + above]


@compiled
def count(
    calibration: AcceptanceCalibration, trees: FlatTrees, new_tokens: IntArray, ends: IntArray
) -> None:
    """Count the tried and the accepted nodes of a step in a calibration.

    The children of the root and of every accepted node count as tried.

    Args:
        calibration: Counts to update.
        trees: Trees as proposed by the drafter, one per request.
        new_tokens: New tokens of all requests, concatenated.
        ends: Index of each request's first new token, followed by the total number of tokens, [1 +
            trees].
    """
    for tree in range(len(trees.starts) - 1):
        parent, first = -1, trees.starts[tree]
        for index in range(ends[tree], ends[tree + 1]):
            passed = -1
            for node in range(first, trees.starts[tree + 1]):
                if trees.parents[node] != parent:
                    continue
                accepted = trees.token_ids[node] == new_tokens[index]
                _count_node(calibration, trees.confidence[node], accepted)
                if accepted:
                    passed = node - first
            if passed < 0:
                break
            parent = passed


@kernel
def _count_node(calibration: AcceptanceCalibration, confidence: float, accepted: bool) -> None:
    bucket = bucket_of(calibration.edges, confidence)
    if calibration.trials[bucket] >= calibration.memory:
        calibration.predicted[bucket] *= 0.5
    calibration.predicted[bucket] += confidence
    count_trial(calibration.hits, calibration.trials, bucket, accepted, calibration.memory)
