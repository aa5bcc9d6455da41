"""Train an acceptance head on recordings: weighted binary cross-entropy, AdamW, warm-up and a cosine schedule (Section 3.3).

The weight on rejections makes the raw head report rejections too often. So its logit is scaled and shifted afterwards (Platt
1999), fitted without weights on development prompts; both numbers are in the card, and `AcceptanceHead.chances` applies them.
"""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress
from torch import Tensor
from torch.nn import functional

from paceline.acceptance import ACCEPTED, REJECTED, AcceptanceHead, accept_logits, scalars_of
from paceline.acceptance_card import INPUTS, MOST_BLOCKS, HeadCard
from paceline.config import require_range
from paceline.errors import ConfigError
from paceline.head.evaluate import judge
from paceline.head.recording import Recording, read_recording

_CLIP = 1.0  # largest norm of a gradient
_NEWTON_STEPS, _STRIDE, _RIDGE = 50, 2.0, 1e-6  # at most; largest change of a weight in one of them; keeps them solvable


@dataclass(frozen=True, slots=True)
class TrainConfig:
    """How a head is trained.

    Attributes:
        depth: D, residual blocks, 0 to 4. reject_weight: of rejections in the loss (the paper's w_rej; acceptances have 1).
        scalars: the last layer also reads scalars of the draft's distribution; not in the paper.
        epochs, lr, weight_decay, batch: of AdamW; batch in positions. warmup: share of the steps.
        dev: share of the prompts that calibration is fitted on. held_out: share that is only reported on.
        seed: of the split, the first weights and the order. note: for the card, such as the prompts' sources and licences.
    Raises:
        ConfigError: a value outside its range.
    """

    depth: int = 3
    reject_weight: float = 6.0
    scalars: bool = True
    epochs: int = 10
    lr: float = 1e-3
    weight_decay: float = 0.01
    batch: int = 1024
    warmup: float = 0.03
    dev: float = 0.1
    held_out: float = 0.1
    seed: int = 0
    note: str = ""

    def __post_init__(self) -> None:
        require_range("head train", "depth", self.depth, 0, MOST_BLOCKS)
        for name, low in (("epochs", 1), ("batch", 1), ("weight_decay", 0)):
            require_range("head train", name, getattr(self, name), low)
        for name in ("reject_weight", "lr"):
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) > 0):
                raise ConfigError(f"head train: {name} is {getattr(self, name)}; allowed is any positive number.")
        for name in ("warmup", "dev", "held_out"):
            require_range("head train", name, getattr(self, name), 0, 0.5)


def train(folders: Iterable[str | Path], config: TrainConfig | None = None, progress: bool = False) -> AcceptanceHead:
    """A head trained on recordings of one pair, calibrated and judged; not yet saved.

    Raises:
        ConfigError: recordings that cannot be read or are of different drafts, or too few prompts to split.
    """
    config = config or TrainConfig()
    recordings = [read_recording(folder) for folder in folders]
    _check_same_draft(recordings)
    parts = split_prompts(sorted({name for recording in recordings for name in recording.names}), config)
    training, dev, held_out = ([recording.of(set(part)) for recording in recordings] for part in parts)
    card = _card(recordings, config, parts)
    tensors = fit(training, card, config, progress)
    scale, shift = platt(AcceptanceHead(card, tensors), dev)
    head = AcceptanceHead(dataclasses.replace(card, scale=scale, shift=shift, prior=prior(training)), tensors)
    metrics = {"held_out": judge(head, held_out).as_dict(), "dev": judge(head, dev).as_dict()}
    return AcceptanceHead(dataclasses.replace(head.card, metrics=metrics), tensors)


def fit(recordings: Seq[Recording], card: HeadCard, config: TrainConfig, progress: bool = False) -> dict[str, Tensor]:
    """The trained tensors of a head as `card` describes it."""
    hidden = torch.cat([recording.hidden for recording in recordings])
    scalars = torch.cat([scalar_columns(recording, card) for recording in recordings])
    labels = torch.cat([recording.labels for recording in recordings])
    generator = torch.Generator().manual_seed(config.seed)
    tensors = first_tensors(card, scalars, labels, config, generator)
    optimiser = torch.optim.AdamW(tensors.values(), lr=config.lr, weight_decay=config.weight_decay)
    steps = config.epochs * math.ceil(len(labels) / config.batch)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: _rate(step, steps, config.warmup))
    with Progress(console=Console(stderr=True), transient=True, disable=not progress) as bar:
        task = bar.add_task("training", total=steps)
        for _ in range(config.epochs):
            for places in torch.split(torch.randperm(len(labels), generator=generator), config.batch):
                logits = raw_logits(tensors, card, hidden[places].float(), scalars[places])
                loss = weighted_loss(logits, labels[places], config.reject_weight)
                optimiser.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                torch.nn.utils.clip_grad_norm_(tensors.values(), _CLIP)
                optimiser.step()
                schedule.step()
                bar.advance(task)
    return {name: tensor.detach() for name, tensor in tensors.items()}


def weighted_loss(logits: Tensor, labels: Tensor, reject_weight: float) -> Tensor:
    """Soft binary cross-entropy with weight 1 on accepting and `reject_weight` on rejecting, divided by the sum of weights.

    Args:
        logits, labels: [n]; labels are acceptance probabilities.
    """
    rejects = reject_weight * (1 - labels)
    total = labels * functional.softplus(-logits) + rejects * functional.softplus(logits)
    return total.sum() / (labels + rejects).sum()


def raw_logits(tensors: dict[str, Tensor], card: HeadCard, hidden: Tensor, scalars: Tensor) -> Tensor:
    """The uncalibrated logits [n] of hidden states [n, hidden] and scalars [n, 0 or 3]."""
    blocks = [(tensors[f"blocks.{place}.weight"], tensors[f"blocks.{place}.bias"]) for place in range(card.depth)]
    last = tensors["last.weight"][ACCEPTED] - tensors["last.weight"][REJECTED]
    bias = tensors["last.bias"][ACCEPTED] - tensors["last.bias"][REJECTED]
    logits = accept_logits(blocks, last[: card.hidden_size], bias, hidden)
    return logits + scalars @ last[card.hidden_size :]


def first_tensors(
    card: HeadCard, scalars: Tensor, labels: Tensor, config: TrainConfig, generator: torch.Generator
) -> dict[str, Tensor]:  # fmt: skip
    """Weights to begin with: blocks as `torch.nn.Linear` begins, each its own; the last layer as the scalars' best reader."""
    hidden = card.hidden_size
    tensors = {}
    for place in range(card.depth):
        for part, shape in (("weight", (hidden, hidden)), ("bias", (hidden,))):
            tensors[f"blocks.{place}.{part}"] = torch.rand(shape, generator=generator).mul_(2).sub_(1).div_(math.sqrt(hidden))
    fitted = logistic_fit(scalars, labels, config.reject_weight).float() / 2  # half for either class
    signs = torch.tensor([-1.0, 1.0])  # rejected, accepted
    tensors["last.weight"] = signs[:, None] * torch.cat([torch.zeros(hidden), fitted[:-1]])
    tensors["last.bias"] = signs * fitted[-1]
    return {name: tensor.requires_grad_() for name, tensor in tensors.items()}


def scalar_columns(recording: Recording, card: HeadCard) -> Tensor:
    """The scalars [n, 0 or 3] that the last layer of such a head reads."""
    if len(card.inputs) == 1:
        return recording.labels.new_empty(len(recording), 0)
    return torch.stack(scalars_of(recording.log_probs, recording.entropies), -1)


def platt(head: AcceptanceHead, recordings: Seq[Recording]) -> tuple[float, float]:
    """Scale and shift of the logit that fit the labels best."""
    card = head.card
    logits = torch.cat([raw_logits(head.tensors, card, one.hidden.float(), scalar_columns(one, card)) for one in recordings])
    scale, shift = logistic_fit(logits[:, None], torch.cat([one.labels for one in recordings])).tolist()
    return float(scale), float(shift)


def prior(recordings: Seq[Recording]) -> tuple[float, ...]:
    """Weights of the card's `prior`, fitted to all positions."""
    scalars = [torch.stack(scalars_of(one.log_probs, one.entropies), -1) for one in recordings]
    return tuple(logistic_fit(torch.cat(scalars), torch.cat([one.labels for one in recordings])).tolist())


def logistic_fit(columns: Tensor, labels: Tensor, reject_weight: float = 1.0) -> Tensor:
    """Weights [k + 1] of `columns` [n, k] and of a constant in the logit that fits `labels` [n] best, by Newton's method."""
    design = torch.cat([columns, torch.ones(len(labels), 1)], -1).double()
    accepts, rejects = labels.double(), reject_weight * (1 - labels.double())
    solution = design.new_zeros(design.shape[1])
    for _ in range(_NEWTON_STEPS):
        chances = (design @ solution).sigmoid()
        gradient = design.T @ (rejects * chances - accepts * (1 - chances))
        curvature = (design * ((accepts + rejects) * chances * (1 - chances))[:, None]).T @ design
        step = torch.linalg.solve(curvature + _RIDGE * torch.eye(len(solution), dtype=torch.float64), gradient)
        solution = solution - step.clamp(-_STRIDE, _STRIDE)
        if float(step.abs().max()) < 1e-9:
            break
    return solution


def split_prompts(names: Seq[str], config: TrainConfig) -> tuple[list[str], list[str], list[str]]:
    """Names for training, development and reporting; a prompt of several recordings is on one side in all.

    Raises:
        ConfigError: too few prompts for that.
    """
    order = list(names)
    random.Random(config.seed).shuffle(order)
    dev, held_out = (round(share * len(order)) for share in (config.dev, config.held_out))
    if min(dev, held_out, len(order) - dev - held_out) < 1:
        raise ConfigError(
            f"head train: {len(order)} prompts cannot be split into training, {config.dev:.0%} development and"
            f" {config.held_out:.0%} held out; record more prompts, or raise the shares."
        )
    return order[dev + held_out :], order[:dev], order[dev : dev + held_out]


def _card(recordings: Seq[Recording], config: TrainConfig, parts: tuple[list[str], list[str], list[str]]) -> HeadCard:
    first = recordings[0].settings
    recipe: dict[str, Any] = {
        "train": dataclasses.asdict(config),
        "recordings": [recording.settings for recording in recordings],
        "positions": sum(map(len, recordings)),
    }
    return HeadCard(
        first["target"], first["draft"], first["draft_fingerprint"], first["hidden_size"], first["vocab_size"], config.depth,
        INPUTS[config.scalars], recipe=recipe, train_prompts="".join(sorted(parts[0])), dev_prompts="".join(sorted(parts[1])),
    )  # fmt: skip


def _check_same_draft(recordings: Seq[Recording]) -> None:
    if not recordings:
        raise ConfigError("head train: no recording came; name at least one folder that `paceline head record` has filled.")
    for what in ("draft_fingerprint", "hidden_size", "vocab_size"):
        values = {recording.settings[what] for recording in recordings}
        if len(values) > 1:
            raise ConfigError(f"head train: the recordings are of different draft models ({what}: {values}); use one pair's.")


def _rate(step: int, steps: int, warmup: float) -> float:
    first = warmup * steps
    return (step + 1) / first if step < first else 0.5 * (1 + math.cos(math.pi * (step - first) / max(1.0, steps - first)))
