"""Measure the calibration and discrimination of predicted probabilities.

Labels are acceptance probabilities, from 0 to 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from paceline.training.acceptance_head.settings import CALIBRATION_BINS


@dataclass(frozen=True, slots=True)
class Bin:
    """All predictions that fall into one subinterval of [0, 1].

    Attributes:
        count: Number of predictions.
        predicted: Mean of the predicted probabilities.
        observed: Mean of the corresponding labels.
    """

    count: int
    predicted: float
    observed: float


def reliability_bins(
    predictions: Tensor, labels: Tensor, bins: int = CALIBRATION_BINS
) -> list[Bin]:
    """Group predictions into bins of equal width, omitting empty bins.

    Args:
        predictions: Predicted probabilities, [n].
        labels: Acceptance probabilities, [n].
        bins: Number of bins, including empty ones.
    """
    indices = (predictions * bins).long().clamp_(0, bins - 1)
    counts = torch.bincount(indices, minlength=bins)
    predicted = torch.bincount(indices, weights=predictions.double(), minlength=bins)
    observed = torch.bincount(indices, weights=labels.double(), minlength=bins)
    return [
        Bin(int(count), float(predicted_sum) / int(count), float(observed_sum) / int(count))
        for count, predicted_sum, observed_sum in zip(counts, predicted, observed, strict=True)
        if count
    ]


def calibration_error(predictions: Tensor, labels: Tensor, bins: int = CALIBRATION_BINS) -> float:
    """Return the expected calibration error (Guo et al. 2017).

    Args:
        predictions: Predicted probabilities, [n].
        labels: Acceptance probabilities, [n].
        bins: Number of bins.
    """
    groups = reliability_bins(predictions, labels, bins)
    error = sum(group.count * abs(group.predicted - group.observed) for group in groups)
    return error / max(1, sum(group.count for group in groups))


def roc_area(predictions: Tensor, labels: Tensor) -> float:
    """Return the area under the ROC curve; tied predictions count as half.

    A token with label P counts as accepted with weight P and as rejected with weight 1 - P. If all
    tokens are accepted or all are rejected, the result is 0.5.

    Args:
        predictions: Predicted probabilities, [n].
        labels: Acceptance probabilities, [n].
    """
    _, rank = torch.unique(predictions, return_inverse=True)  # ascending; ties share a rank
    accepted = torch.bincount(rank, weights=labels.double())
    rejected = torch.bincount(rank, weights=1.0 - labels.double())
    pairs = float(accepted.sum() * rejected.sum())
    below = rejected.cumsum(0) - rejected
    return float((accepted * (below + 0.5 * rejected)).sum()) / pairs if pairs > 0 else 0.5


def log_loss(predictions: Tensor, labels: Tensor) -> float:
    """Return the mean binary cross-entropy, in nats."""
    clamped = predictions.double().clamp(1e-7, 1 - 1e-7)
    return float(torch.nn.functional.binary_cross_entropy(clamped, labels.double()))
