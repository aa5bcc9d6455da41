"""How good a predicted probability is: calibration and separation. Labels are acceptance
probabilities, 0 to 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

BINS = 15


@dataclass(frozen=True, slots=True)
class Bin:
    """The predictions of one fifteenth of [0, 1].

    Attributes:
        count: how many there are.
        predicted: their mean.
        observed: the mean of their labels.
    """

    count: int
    predicted: float
    observed: float


def reliability_bins(predictions: Tensor, labels: Tensor, bins: int = BINS) -> list[Bin]:
    """Return the bins that have predictions, in ascending order.

    Args:
        predictions: [n], 0 to 1.
        labels: [n], 0 to 1.
        bins: how many parts [0, 1] is cut into.
    """
    place = (predictions * bins).long().clamp_(0, bins - 1)
    counts = torch.bincount(place, minlength=bins)
    predicted = torch.bincount(place, weights=predictions.double(), minlength=bins)
    observed = torch.bincount(place, weights=labels.double(), minlength=bins)
    return [
        Bin(int(count), float(mean) / int(count), float(seen) / int(count))
        for count, mean, seen in zip(counts, predicted, observed, strict=True)
        if count
    ]


def calibration_error(predictions: Tensor, labels: Tensor, bins: int = BINS) -> float:
    """Return the expected calibration error (Guo et al. 2017): |predicted - observed| of the
    bins, each by its share.
    """
    found = reliability_bins(predictions, labels, bins)
    return sum(one.count * abs(one.predicted - one.observed) for one in found) / max(
        1, sum(one.count for one in found)
    )


def roc_area(predictions: Tensor, labels: Tensor) -> float:
    """Return the area under the ROC curve: how often an accepted token is predicted above a
    rejected one; a tie counts half.

    A token with label P counts as accepted with weight P and as rejected with weight 1 - P. 0.5
    where there is only one kind.
    """
    _, place = torch.unique(predictions, return_inverse=True)  # ascending; equal ones share a place
    accepted = torch.bincount(place, weights=labels.double())
    rejected = torch.bincount(place, weights=1.0 - labels.double())
    pairs = float(accepted.sum() * rejected.sum())
    below = rejected.cumsum(0) - rejected
    return float((accepted * (below + 0.5 * rejected)).sum()) / pairs if pairs > 0 else 0.5


def log_loss(predictions: Tensor, labels: Tensor) -> float:
    """Return the mean binary cross-entropy in nats."""
    return float(
        torch.nn.functional.binary_cross_entropy(
            predictions.double().clamp(1e-7, 1 - 1e-7), labels.double()
        )
    )
