"""Train for a given number of steps or seconds, with regular validation.

`Trainer` contains the training loop of draft models, draft heads and acceptance heads. A subclass
supplies the batches, the loss and the validation, and may store checkpoints.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor
from torch.optim.lr_scheduler import LRScheduler

from paceline.engine.keyboard_interrupts import interrupts_held
from paceline.errors import ConfigError
from paceline.report.progress import progress_bar
from paceline.training.settings import LOSS_WINDOW, TrainingSettings


@dataclass(slots=True)
class TrainingProgress:
    """The progress of a training run: time in seconds and number of optimiser steps."""

    seconds: float = 0.0
    steps: int = 0


class TrainingReport:
    """Reports training progress, with one line per validation and a progress bar.

    Args:
        write: Function that writes a line. Default: no lines are written.
        shown: Whether to show a progress bar if standard error is a terminal.
    Attributes:
        bar: Progress bar, as a context manager.
    """

    def __init__(self, write: Callable[[str], None] | None = None, shown: bool = False) -> None:
        self._write = write
        self.bar = progress_bar(shown=shown)
        self._task = self.bar.add_task("training", total=1.0)

    def advance(self, share: float) -> None:
        """Update the progress bar to the completed fraction of the training."""
        self.bar.update(self._task, completed=share)

    def validation(self, progress: TrainingProgress, losses: dict[str, float], scores: str) -> None:
        """Write the progress line for one validation.

        Args:
            progress: Progress of the training run.
            losses: Mean loss over the most recent steps, by kind of batch.
            scores: Description of the results on held-out data.
        """
        if self._write is not None:
            parts = [", ".join(f"{kind} loss {loss:.3f}" for kind, loss in losses.items()), scores]
            position = f"{progress.seconds / 60:.1f} min, step {progress.steps}"
            self._write(f"{position}: {'; '.join(filter(None, parts))}")


class Trainer(ABC):
    """Trains a model; subclasses supply the batches, the loss and the validation.

    Args:
        settings: Settings of the training.
        total: Length of the training run, in steps or seconds (see `unit`).
        interval: Steps or seconds between two validations.
        clock: Function that returns the current time in seconds.
    Attributes:
        command: Name of the command, for error messages.
        unit: Unit of `total` and `interval`: "steps" or "seconds".
        max_gradient_norm: Maximum gradient norm; larger gradients are clipped. None means no
            clipping.
        progress: Progress of the training run.
        parameters: Weights to train; their order affects the rounding of the gradient norm.
        optimisers: Optimisers for these weights.
        schedules: Learning-rate schedules of the optimisers, advanced after each step.
    """

    command: ClassVar[str]
    unit: ClassVar[Literal["steps", "seconds"]] = "steps"
    max_gradient_norm: ClassVar[float | None] = None
    progress: TrainingProgress
    parameters: Sequence[Tensor]
    optimisers: Sequence[torch.optim.Optimizer]
    schedules: Sequence[LRScheduler]

    def __init__(
        self,
        settings: TrainingSettings,
        total: float,
        interval: float,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._lr, self._clock = settings.lr, clock
        self._total, self._interval = total, interval
        self.progress = TrainingProgress()
        self._losses: dict[str, deque[float]] = defaultdict(lambda: deque(maxlen=LOSS_WINDOW))

    @abstractmethod
    def next_loss(self) -> tuple[str, Tensor]:
        """Return the kind of the next batch, such as "answers", and the loss on it."""

    def validate(self, losses: dict[str, float]) -> str:
        """Evaluate the model on held-out data, and return a description of the scores.

        Args:
            losses: Mean loss over the most recent steps, by kind of batch.
        """
        return ""

    def save_state(self) -> None:  # noqa: B027  (optional)
        """Store a checkpoint after Ctrl-C, if the subclass supports checkpoints."""

    @property
    def share(self) -> float:
        """Return the completed fraction of the training run."""
        return self._position / self._total

    @property
    def _position(self) -> float:
        return float(getattr(self.progress, self.unit))

    def run(self, report: TrainingReport | None = None) -> None:
        """Train until the end of the training run.

        On Ctrl-C, the method completes the current step, stores a checkpoint, and raises
        KeyboardInterrupt.

        Args:
            report: Progress report. Default: no output.
        Raises:
            ConfigError: A loss is not finite.
        """
        report = report or TrainingReport()
        last, due = self._clock(), self._position + self._interval
        with report.bar:
            try:
                while self.share < 1:
                    with interrupts_held():  # an unfinished step would corrupt the checkpoint
                        self.step()
                        last = self._advance(last)
                    report.advance(self.share)
                    if self._position >= min(due, self._total):
                        self.report_validation(report)
                        due += self._interval
            except KeyboardInterrupt:
                with interrupts_held():
                    self.save_state()
                raise

    def step(self) -> None:
        """Train on the next batch: compute the loss and take one optimiser step."""
        kind, loss = self.next_loss()
        require_finite(self.command, loss, self._lr)
        for optimiser in self.optimisers:
            optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        if self.max_gradient_norm is not None:
            torch.nn.utils.clip_grad_norm_(self.parameters, self.max_gradient_norm)
        for optimiser in self.optimisers:
            optimiser.step()
        self.progress.steps += 1
        self._losses[kind].append(loss.item())

    def report_validation(self, report: TrainingReport) -> None:
        """Validate the model, and report the losses and scores."""
        losses = {kind: float(np.mean(values)) for kind, values in sorted(self._losses.items())}
        report.validation(self.progress, losses, self.validate(losses))

    def _advance(self, last: float) -> float:
        """Update the training time and the learning rates; return the current time.

        Args:
            last: Time of the previous update, in seconds.
        """
        now = self._clock()
        self.progress.seconds = self.progress.seconds + now - last
        # Schedules may depend on the training time, which is therefore updated first.
        for schedule in self.schedules:
            schedule.step()
        return now


def shuffled_batches(
    rows: Tensor, size: int, generator: torch.Generator, complete: bool = False
) -> Iterator[Tensor]:
    """Yield batches of rows indefinitely, in a new random order in each epoch.

    Args:
        rows: Indices of the training examples, [n].
        size: Number of rows per batch.
        generator: Random generator for the order.
        complete: Whether to omit the incomplete batch at the end of an epoch.
    """
    while True:
        order = rows[torch.randperm(len(rows), generator=generator)]
        yield from torch.split(order[: len(order) // size * size] if complete else order, size)


def require_finite(command: str, values: Tensor, lr: float) -> None:
    """Raise an error if a loss or a weight is infinite or NaN.

    Args:
        command: Name of the training command, for the error message.
        values: Loss or weights to check.
        lr: Peak learning rate, which the error message states.
    Raises:
        ConfigError: A value is not finite, so training has diverged.
    """
    if not torch.isfinite(values).all():
        raise ConfigError(
            f"\0{command}: lr\0: got {lr:g}, with which the loss is not finite; expected less."
            " Lower it."
        )
