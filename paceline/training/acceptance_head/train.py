"""Train an acceptance head on recordings (Huang et al. 2024, section 3.3).

The loss is weighted binary cross-entropy, and the optimiser is AdamW. There are two differences
from the paper. First, a scale and a shift of the head's logit are fitted to development prompts,
with equal weights for rejections and acceptances (Platt 1999). Without this calibration, the head
would predict too many rejections, because they have a higher weight in the loss (`reject_weight`).
Second, the last layer starts as a logistic regression on scalars that are computed from the draft
distribution.
"""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR

from paceline.drafters.specdec_pp.card import INPUTS, HeadCard
from paceline.drafters.specdec_pp.head import AcceptanceHead
from paceline.errors import ConfigError
from paceline.training.acceptance_head.evaluate import judge
from paceline.training.acceptance_head.fitting import (
    logistic_fit,
    platt,
    prior,
    raw_logits,
    scalar_columns,
    weighted_loss,
)
from paceline.training.acceptance_head.recording import Recording
from paceline.training.acceptance_head.settings import MAX_GRADIENT_NORM, TrainConfig
from paceline.training.loop import (
    Trainer,
    TrainingReport,
    require_finite,
    shuffled_batches,
)


def train(
    recordings: Sequence[Recording], config: TrainConfig | None = None, progress: bool = False
) -> AcceptanceHead:
    """Train, calibrate and evaluate a head on recordings of one pair of models.

    Args:
        recordings: Recordings with the same draft model.
        config: Training settings. Default: `TrainConfig()`.
        progress: Whether to show a progress bar.
    Raises:
        ConfigError: There are no recordings, the recordings come from different draft models, there
            are too few prompts to split, or the learning rate makes training diverge.
    """
    config = config or TrainConfig()
    _check_same_draft(recordings)
    names = sorted({name for recording in recordings for name in recording.names})
    split = split_prompts(names, config)
    training, dev, held_out = (
        [recording.of_prompts(set(part)) for recording in recordings] for part in split
    )
    card = _card(recordings, config, split)
    trainer = AcceptanceHeadTrainer(training, card, config)
    trainer.run(TrainingReport(shown=progress))
    tensors = {name: tensor.detach() for name, tensor in trainer.tensors.items()}
    for tensor in tensors.values():
        require_finite(trainer.command, tensor, config.lr)
    scale, shift = platt(AcceptanceHead(card, tensors), dev)
    # Even finite weights can be so large that the calibration fails.
    require_finite(trainer.command, torch.tensor([scale, shift]), config.lr)
    card = dataclasses.replace(card, scale=scale, shift=shift, prior=prior(training))
    head = AcceptanceHead(card, tensors)
    metrics = {"held_out": judge(head, held_out).as_dict(), "dev": judge(head, dev).as_dict()}
    return AcceptanceHead(dataclasses.replace(card, metrics=metrics), tensors)


class AcceptanceHeadTrainer(Trainer):
    """Trains the weights of an acceptance head.

    Args:
        recordings: Recordings to train on.
        card: Description of the head.
        config: Training settings.
    Attributes:
        tensors: Weights of the head, by their names in `AcceptanceHead`.
    """

    command = "head train"
    max_gradient_norm = MAX_GRADIENT_NORM

    def __init__(
        self, recordings: Sequence[Recording], card: HeadCard, config: TrainConfig
    ) -> None:
        self._labels = torch.cat([recording.labels for recording in recordings])
        epoch_steps = math.ceil(len(self._labels) / config.batch)
        steps = config.epochs * epoch_steps
        super().__init__(config, steps, epoch_steps)
        self._card, self._config = card, config
        self._hidden = torch.cat([recording.hidden for recording in recordings])
        self._scalars = torch.cat([scalar_columns(recording, card) for recording in recordings])
        self._random = torch.Generator().manual_seed(config.seed)
        self.tensors = first_tensors(card, self._scalars, self._labels, config, self._random)
        self.parameters = list(self.tensors.values())
        optimiser = torch.optim.AdamW(
            self.parameters, lr=config.lr, weight_decay=config.weight_decay
        )
        self.optimisers = [optimiser]
        self.schedules = [LambdaLR(optimiser, lambda step: _rate(step, steps, config.warmup))]
        rows = torch.arange(len(self._labels))
        self._batches = shuffled_batches(rows, config.batch, self._random)

    def next_loss(self) -> tuple[str, Tensor]:
        """Return the weighted loss on the next batch of draft tokens."""
        rows = next(self._batches)
        logits = raw_logits(
            self.tensors, self._card, self._hidden[rows].float(), self._scalars[rows]
        )
        return "training", weighted_loss(logits, self._labels[rows], self._config.reject_weight)


def first_tensors(
    card: HeadCard, scalars: Tensor, labels: Tensor, config: TrainConfig, generator: torch.Generator
) -> dict[str, Tensor]:
    """Return initial weights: random residual blocks and a fitted last layer.

    Args:
        card: Description of the head.
        scalars: Scalars from which the fitted last layer predicts the labels, [n, 0 or 3].
        labels: Acceptance probabilities, [n].
        config: Training settings.
        generator: Random generator for the blocks, which are initialised as in `torch.nn.Linear`.
    """
    hidden = card.hidden_size
    tensors = {}
    for block in range(card.depth):
        for part, shape in (("weight", (hidden, hidden)), ("bias", (hidden,))):
            uniform = torch.rand(shape, generator=generator).mul_(2).sub_(1)
            tensors[f"blocks.{block}.{part}"] = uniform.div_(math.sqrt(hidden))
    # Each of the two classes, rejected and accepted, gets half of the logit.
    fitted = logistic_fit(scalars, labels, config.reject_weight).float() / 2
    signs = torch.tensor([-1.0, 1.0])  # rejected, accepted
    tensors["last.weight"] = signs[:, None] * torch.cat([torch.zeros(hidden), fitted[:-1]])
    tensors["last.bias"] = signs * fitted[-1]
    return {name: tensor.requires_grad_() for name, tensor in tensors.items()}


class PromptSplit(NamedTuple):
    """The names of the prompts for training, calibration (dev) and evaluation."""

    training: list[str]
    dev: list[str]
    held_out: list[str]


def split_prompts(names: Sequence[str], config: TrainConfig) -> PromptSplit:
    """Split prompts at random into training, development and held-out prompts.

    Args:
        names: Names of all prompts, without duplicates.
        config: Training settings with the size of each part and the random seed.
    Raises:
        ConfigError: There are too few prompts.
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
    return PromptSplit(order[dev + held_out :], order[:dev], order[dev : dev + held_out])


def _card(recordings: Sequence[Recording], config: TrainConfig, split: PromptSplit) -> HeadCard:
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
        train_prompts="".join(sorted(split.training)),
        dev_prompts="".join(sorted(split.dev)),
    )


def _check_same_draft(recordings: Sequence[Recording]) -> None:
    if not recordings:
        raise ConfigError("head train: no recording. Make one with `paceline head record`.")
    for setting in ("draft_fingerprint", "hidden_size", "vocab_size"):
        values = {recording.settings[setting] for recording in recordings}
        if len(values) > 1:
            raise ConfigError(
                f"head train: got recordings of different draft models ({setting}: {values});"
                " expected recordings of a single draft model. Leave the others out."
            )


def _rate(step: int, steps: int, warmup: float) -> float:
    """Return the learning rate as a fraction of its peak: linear warm-up, then cosine."""
    first = warmup * steps
    if step < first:
        return (step + 1) / first
    return 0.5 * (1 + math.cos(math.pi * (step - first) / max(1.0, steps - first)))
