"""Compute the logits of an acceptance head, and fit logistic regressions."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from paceline.drafters.specdec_pp.card import HeadCard
from paceline.drafters.specdec_pp.head import AcceptanceHead
from paceline.drafters.specdec_pp.head_layers import (
    ACCEPTED,
    REJECTED,
    accept_logits,
    scalars_of,
)
from paceline.training.acceptance_head.recording import Recording
from paceline.training.acceptance_head.settings import FIT_CHANGE, FIT_GRADIENT, FIT_STEPS


def weighted_loss(logits: Tensor, labels: Tensor, reject_weight: float) -> Tensor:
    """Return the mean binary cross-entropy, with a separate weight for rejections.

    The loss is that of Huang et al. 2024, section 3.3.

    Args:
        logits: Acceptance logits, [n].
        labels: Acceptance probabilities, from 0 to 1, [n].
        reject_weight: Weight of rejections, relative to acceptances; above 0.
    """
    accept_weight = torch.tensor(1 / reject_weight, dtype=logits.dtype)
    total = functional.binary_cross_entropy_with_logits(
        logits, labels, reduction="sum", pos_weight=accept_weight
    )
    return reject_weight * total / (labels + reject_weight * (1 - labels)).sum()


def raw_logits(
    tensors: dict[str, Tensor], card: HeadCard, hidden: Tensor, scalars: Tensor
) -> Tensor:
    """Return the uncalibrated acceptance logits, [n].

    Args:
        tensors: Weights of the head.
        card: Description of the head.
        hidden: The draft model's hidden states, [n, hidden].
        scalars: Scalars computed from the draft distribution, [n, 0 or 3].
    """
    blocks = [
        (tensors[f"blocks.{block}.weight"], tensors[f"blocks.{block}.bias"])
        for block in range(card.depth)
    ]
    last = tensors["last.weight"][ACCEPTED] - tensors["last.weight"][REJECTED]
    bias = tensors["last.bias"][ACCEPTED] - tensors["last.bias"][REJECTED]
    logits = accept_logits(blocks, last[: card.hidden_size], bias, hidden)
    return logits + scalars @ last[card.hidden_size :]


def scalar_columns(recording: Recording, card: HeadCard) -> Tensor:
    """Return the scalars that a head's last layer reads.

    The shape is [n, 3], or [n, 0] if the last layer reads no scalars.
    """
    if len(card.inputs) == 1:
        return recording.labels.new_empty(len(recording), 0)
    return torch.stack(scalars_of(recording.log_probs, recording.entropies), -1)


def platt(head: AcceptanceHead, recordings: Sequence[Recording]) -> tuple[float, float]:
    """Fit a scale and a shift that calibrate the head's logit (Platt 1999)."""
    logits = torch.cat(
        [
            raw_logits(
                head.tensors,
                head.card,
                recording.hidden.float(),
                scalar_columns(recording, head.card),
            )
            for recording in recordings
        ]
    )
    labels = torch.cat([recording.labels for recording in recordings])
    scale, shift = logistic_fit(logits[:, None], labels).tolist()
    return float(scale), float(shift)


def prior(recordings: Sequence[Recording]) -> tuple[float, ...]:
    """Fit the coefficients in `HeadCard.prior` to all tokens in the recordings."""
    scalars = [
        torch.stack(scalars_of(recording.log_probs, recording.entropies), -1)
        for recording in recordings
    ]
    labels = torch.cat([recording.labels for recording in recordings])
    return tuple(logistic_fit(torch.cat(scalars), labels).tolist())


def logistic_fit(columns: Tensor, labels: Tensor, reject_weight: float = 1.0) -> Tensor:
    """Fit a logistic regression with L-BFGS.

    Args:
        columns: Features, [n, k].
        labels: Acceptance probabilities, from 0 to 1, [n].
        reject_weight: Weight of rejections, relative to acceptances; above 0.
    Returns:
        The weights of the features, followed by the constant, float64 [k + 1].
    """
    design = torch.cat([columns, torch.ones(len(labels), 1)], -1).double()
    weights = torch.zeros(design.shape[1], dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.LBFGS(
        [weights],
        max_iter=FIT_STEPS,
        tolerance_grad=FIT_GRADIENT,
        tolerance_change=FIT_CHANGE,
        line_search_fn="strong_wolfe",
    )

    def loss() -> Tensor:
        optimiser.zero_grad()
        value = weighted_loss(design @ weights, labels.double(), reject_weight)
        value.backward()  # type: ignore[no-untyped-call]
        return value

    optimiser.step(loss)  # type: ignore[no-untyped-call]
    return weights.detach()
