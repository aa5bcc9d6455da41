"""Train an acceptance head on recordings (Huang et al. 2024, "SpecDec++", section 3.3): weighted
binary cross-entropy, AdamW.

What is different here: the weight on rejections makes the raw head report rejections too often, so
its logit is scaled and shifted afterwards (Platt 1999), fitted without weights on development
prompts; both numbers are in the card, and `AcceptanceHead.confidences` applies them. The last layer
begins as the best reader of the scalars.
"""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from paceline.drafters.specdec_pp.card import INPUTS, HeadCard
from paceline.drafters.specdec_pp.head import (
    ACCEPTED,
    REJECTED,
    AcceptanceHead,
    accept_logits,
    scalars_of,
)
from paceline.errors import ConfigError
from paceline.report.progress import progress_bar
from paceline.training.acceptance_head.evaluate import judge
from paceline.training.acceptance_head.recording import Recording
from paceline.training.acceptance_head.settings import TrainConfig

_CLIP = 1.0  # largest norm of a gradient
_FIT_STEPS = 200  # of L-BFGS, at most; a fit of a handful of weights takes 20


def train(
    recordings: Sequence[Recording], config: TrainConfig | None = None, progress: bool = False
) -> AcceptanceHead:
    """Train a head on recordings of one pair, calibrate and judge it; it is not saved yet.

    Raises:
        ConfigError: no recording, recordings of different drafts, too few prompts to split, or a
            rate that trains nothing.
    """
    config = config or TrainConfig()
    _check_same_draft(recordings)
    parts = split_prompts(
        sorted({name for recording in recordings for name in recording.names}), config
    )
    training, dev, held_out = (
        [recording.of_prompts(set(part)) for recording in recordings] for part in parts
    )
    card = _card(recordings, config, parts)
    tensors = fit(training, card, config, progress)
    scale, shift = platt(AcceptanceHead(card, tensors), dev)
    _require_finite(torch.tensor([scale, shift]), config)  # weights may be finite and far too large
    head = AcceptanceHead(
        dataclasses.replace(card, scale=scale, shift=shift, prior=prior(training)), tensors
    )
    metrics = {"held_out": judge(head, held_out).as_dict(), "dev": judge(head, dev).as_dict()}
    return AcceptanceHead(dataclasses.replace(head.card, metrics=metrics), tensors)


def fit(
    recordings: Sequence[Recording], card: HeadCard, config: TrainConfig, progress: bool = False
) -> dict[str, Tensor]:
    """Return the trained tensors of a head as `card` describes it."""
    hidden = torch.cat([recording.hidden for recording in recordings])
    scalars = torch.cat([scalar_columns(recording, card) for recording in recordings])
    labels = torch.cat([recording.labels for recording in recordings])
    generator = torch.Generator().manual_seed(config.seed)
    tensors = first_tensors(card, scalars, labels, config, generator)
    optimiser = torch.optim.AdamW(tensors.values(), lr=config.lr, weight_decay=config.weight_decay)
    steps = config.epochs * math.ceil(len(labels) / config.batch)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimiser, lambda step: _rate(step, steps, config.warmup)
    )
    with progress_bar(shown=progress) as bar:
        task = bar.add_task("training", total=steps)
        for _ in range(config.epochs):
            for places in torch.split(
                torch.randperm(len(labels), generator=generator), config.batch
            ):
                logits = raw_logits(tensors, card, hidden[places].float(), scalars[places])
                loss = weighted_loss(logits, labels[places], config.reject_weight)
                _require_finite(loss, config)
                optimiser.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                torch.nn.utils.clip_grad_norm_(tensors.values(), _CLIP)
                optimiser.step()
                schedule.step()
                bar.advance(task)
    for tensor in tensors.values():
        _require_finite(tensor, config)
    return {name: tensor.detach() for name, tensor in tensors.items()}


def _require_finite(values: Tensor, config: TrainConfig) -> None:
    if not torch.isfinite(values).all():
        raise ConfigError(
            f"head train: lr: got {config.lr:g}, and a loss that is not finite; expected less."
            " Lower it."
        )


def weighted_loss(logits: Tensor, labels: Tensor, reject_weight: float) -> Tensor:
    """Return the mean binary cross-entropy, with weight 1 on accepting and `reject_weight` on
    rejecting (section 3.3).

    Args:
        logits: [n].
        labels: [n], acceptance probabilities.
    """
    accept_weight = torch.tensor(1 / reject_weight, dtype=logits.dtype)
    total = functional.binary_cross_entropy_with_logits(
        logits, labels, reduction="sum", pos_weight=accept_weight
    )
    return reject_weight * total / (labels + reject_weight * (1 - labels)).sum()


def raw_logits(
    tensors: dict[str, Tensor], card: HeadCard, hidden: Tensor, scalars: Tensor
) -> Tensor:
    """Return the uncalibrated logits [n] of hidden states [n, hidden] and scalars [n, 0 or 3]."""
    blocks = [
        (tensors[f"blocks.{place}.weight"], tensors[f"blocks.{place}.bias"])
        for place in range(card.depth)
    ]
    last = tensors["last.weight"][ACCEPTED] - tensors["last.weight"][REJECTED]
    bias = tensors["last.bias"][ACCEPTED] - tensors["last.bias"][REJECTED]
    logits = accept_logits(blocks, last[: card.hidden_size], bias, hidden)
    return logits + scalars @ last[card.hidden_size :]


def first_tensors(
    card: HeadCard, scalars: Tensor, labels: Tensor, config: TrainConfig, generator: torch.Generator
) -> dict[str, Tensor]:
    """Return the weights to begin with: blocks as in `torch.nn.Linear`, each its own; the last
    layer fitted to the scalars.
    """
    hidden = card.hidden_size
    tensors = {}
    for place in range(card.depth):
        for part, shape in (("weight", (hidden, hidden)), ("bias", (hidden,))):
            tensors[f"blocks.{place}.{part}"] = (
                torch.rand(shape, generator=generator).mul_(2).sub_(1).div_(math.sqrt(hidden))
            )
    # half for either class
    fitted = logistic_fit(scalars, labels, config.reject_weight).float() / 2
    signs = torch.tensor([-1.0, 1.0])  # rejected, accepted
    tensors["last.weight"] = signs[:, None] * torch.cat([torch.zeros(hidden), fitted[:-1]])
    tensors["last.bias"] = signs * fitted[-1]
    return {name: tensor.requires_grad_() for name, tensor in tensors.items()}


def scalar_columns(recording: Recording, card: HeadCard) -> Tensor:
    """Return the scalars [n, 0 or 3] that the last layer of such a head reads."""
    if len(card.inputs) == 1:
        return recording.labels.new_empty(len(recording), 0)
    return torch.stack(scalars_of(recording.log_probs, recording.entropies), -1)


def platt(head: AcceptanceHead, recordings: Sequence[Recording]) -> tuple[float, float]:
    """Return the scale and shift of the logit that fit the labels best (Platt 1999)."""
    card = head.card
    logits = torch.cat(
        [
            raw_logits(head.tensors, card, one.hidden.float(), scalar_columns(one, card))
            for one in recordings
        ]
    )
    scale, shift = logistic_fit(
        logits[:, None], torch.cat([one.labels for one in recordings])
    ).tolist()
    return float(scale), float(shift)


def prior(recordings: Sequence[Recording]) -> tuple[float, ...]:
    """Return the weights of the card's `prior`, fitted to all positions."""
    scalars = [torch.stack(scalars_of(one.log_probs, one.entropies), -1) for one in recordings]
    return tuple(
        logistic_fit(torch.cat(scalars), torch.cat([one.labels for one in recordings])).tolist()
    )


def logistic_fit(columns: Tensor, labels: Tensor, reject_weight: float = 1.0) -> Tensor:
    """Return the weights of the logit that fits the labels best: logistic regression by L-BFGS.

    Args:
        columns: [n, k].
        labels: [n], acceptance probabilities.
        reject_weight: as in `weighted_loss`.
    Returns:
        float64 [k + 1], the last one for a constant.
    """
    design = torch.cat([columns, torch.ones(len(labels), 1)], -1).double()
    weights = torch.zeros(design.shape[1], dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.LBFGS(
        [weights],
        max_iter=_FIT_STEPS,
        tolerance_grad=1e-10,
        tolerance_change=1e-14,
        line_search_fn="strong_wolfe",
    )

    def loss() -> Tensor:
        optimiser.zero_grad()
        value = weighted_loss(design @ weights, labels.double(), reject_weight)
        value.backward()  # type: ignore[no-untyped-call]
        return value

    optimiser.step(loss)  # type: ignore[no-untyped-call]
    return weights.detach()


def split_prompts(
    names: Sequence[str], config: TrainConfig
) -> tuple[list[str], list[str], list[str]]:
    """Return names for training, development and reporting; a prompt of several recordings is on
    one side in all.

    Raises:
        ConfigError: too few prompts for that.
    """
    order = list(names)
    random.Random(config.seed).shuffle(order)
    dev, held_out = (round(share * len(order)) for share in (config.dev, config.held_out))
    if min(dev, held_out, len(order) - dev - held_out) < 1:
        raise ConfigError(
            f"head train: got {len(order)} prompts, which cannot be split; expected enough for"
            f" training, {config.dev:.0%} development and {config.held_out:.0%} held out. Record"
            " more prompts, or raise the shares."
        )
    return order[dev + held_out :], order[:dev], order[dev : dev + held_out]


def _card(
    recordings: Sequence[Recording],
    config: TrainConfig,
    parts: tuple[list[str], list[str], list[str]],
) -> HeadCard:
    first = recordings[0].settings
    recipe: dict[str, Any] = {
        "train": dataclasses.asdict(config),
        "recordings": [recording.settings for recording in recordings],
        "positions": sum(map(len, recordings)),
    }
    return HeadCard(
        first["target"],
        first["draft"],
        first["draft_fingerprint"],
        first["draft_sketch"],
        first["hidden_size"],
        first["vocab_size"],
        config.depth,
        INPUTS[config.scalars],
        recipe=recipe,
        train_prompts="".join(sorted(parts[0])),
        dev_prompts="".join(sorted(parts[1])),
    )


def _check_same_draft(recordings: Sequence[Recording]) -> None:
    if not recordings:
        raise ConfigError(
            "head train: got no recording; expected at least one. Make one with `paceline head"
            " record`."
        )
    for what in ("draft_fingerprint", "hidden_size", "vocab_size"):
        values = {recording.settings[what] for recording in recordings}
        if len(values) > 1:
            raise ConfigError(
                f"head train: got recordings of different draft models ({what}: {values}); expected"
                " one pair's. Leave the others out."
            )


def _rate(step: int, steps: int, warmup: float) -> float:
    """Return the learning rate as a share of the highest: a linear warm-up, then half a cosine."""
    first = warmup * steps
    return (
        (step + 1) / first
        if step < first
        else 0.5 * (1 + math.cos(math.pi * (step - first) / max(1.0, steps - first)))
    )
