"""Train a draft model by distillation (Hinton et al. 2015) and on plain text.

Distillation uses the target's distributions in recorded answers.

A training run has a fixed duration, so the schedule depends on the elapsed time. The learning rate
is constant at first, and then falls linearly to zero. Meanwhile, more and more steps use answers
instead of plain text. The data order and the initial weights depend only on the seed. An
interrupted training run can resume from its checkpoint.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR
from transformers import PreTrainedModel

from paceline.cpu.simd_f32x8 import WIDTH
from paceline.engine.keyboard_interrupts import interrupts_held
from paceline.training.draft import settings
from paceline.training.draft.batches import Batches
from paceline.training.draft.chains import Chains
from paceline.training.draft.eagle3_student import Eagle3Student
from paceline.training.draft.eagle_student import EagleStudent
from paceline.training.draft.folder import DraftFolder, DraftProgress, TrainingPoint
from paceline.training.draft.independent_student import IndependentStudent
from paceline.training.draft.prepare import DraftData
from paceline.training.draft.settings import DraftTraining
from paceline.training.draft.start import load_start
from paceline.training.loop import Trainer
from paceline.training.optimisers import model_optimisers
from paceline.training.text_chunks import TextChunk, smallest_cover, token_counts

ANSWERS, TEXTS = "answers", "texts"


class Student(Protocol):
    """Interface that all kinds of draft models share during training."""

    @property
    def model(self) -> nn.Module:
        """Return the draft model that is being trained, with float32 weights."""

    def loss(self, chunks: Sequence[TextChunk], step: int) -> Tensor:
        """Return the loss on a batch, in nats.

        Args:
            chunks: Text chunks of the batch.
            step: Index of the training step, which seeds any random choices.
        """

    def acceptance(self, held_out: Sequence[TextChunk], length: int) -> Chains:
        """Compute the acceptance of chains of `length` tokens on held-out answers."""

    def save(self, folder: Path) -> None:
        """Write the draft model to an existing folder."""


class DraftTrainer(Trainer):
    """Trains a draft model, and stores it in a folder.

    Args:
        target: Target model.
        data: Texts for training and validation.
        config: Settings of the training.
        folder: Folder for the draft model and its checkpoint.
        clock: Function that returns the current time in seconds.
    Attributes:
        model: The draft model, in float32.
        progress: Progress of the training run.
    Raises:
        ConfigError: The checkpoint or the initial draft model cannot be used.
    """

    command = "draft train"
    unit = "seconds"
    max_gradient_norm = settings.MAX_GRADIENT_NORM
    progress: DraftProgress

    def __init__(
        self,
        target: PreTrainedModel,
        data: DraftData,
        config: DraftTraining,
        folder: DraftFolder,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        seconds = 60 * config.minutes
        super().__init__(config, seconds, seconds / config.validations, clock)
        self._config, self._folder, self._held_out = config, folder, data.held_out
        vocab_size = int(target.config.get_text_config(decoder=True).vocab_size)
        token_ids = reduced_vocabulary(data, vocab_size, config.coverage)
        self._kept = len(token_ids)
        self._student: Student
        if config.kind == "eagle3":
            self._student = Eagle3Student(target, config, token_ids, data.training)
        elif config.kind == "eagle":
            name = str(folder.about["target"])
            self._student = EagleStudent(target, name, config, token_ids, data.training)
        else:
            self._student = IndependentStudent(target, config, token_ids)
        self.model = self._student.model
        if config.start:
            load_start(self.model, config.start)
        self.parameters = [weight for weight in self.model.parameters() if weight.requires_grad]
        self.optimisers = model_optimisers(
            self.model, config.lr, settings.EMBEDDING_LR_FACTOR * config.lr
        )
        self.progress = folder.restore(self.model, self.optimisers)
        self.schedules = [LambdaLR(optimiser, self._rate) for optimiser in self.optimisers]
        groups = {ANSWERS: data.answers, TEXTS: data.texts}
        self._batches: dict[str, Iterator[list[TextChunk]]] = {
            kind: Batches(chunks, config.batch, config.seed).after(self.progress.batches[kind])
            for kind, chunks in groups.items()
            if chunks
        }

    def next_loss(self) -> tuple[str, Tensor]:
        """Return the kind of the next batch, answers or texts, and the loss on it."""
        kind, progress = self._next_kind(), self.progress
        batch = next(self._batches[kind])
        progress.batches[kind] += 1
        progress.tokens += sum(map(len, batch))
        return kind, self._student.loss(batch, progress.steps)

    def validate(self, losses: dict[str, float]) -> str:
        """Evaluate on held-out answers, and save the checkpoint and the best draft model."""
        config, progress = self._config, self.progress
        chains = self._student.acceptance(self._held_out, config.length)
        minutes, scores = progress.seconds / 60, (chains.agreement, chains.per_chain)
        point = TrainingPoint(minutes, progress.steps, progress.tokens, losses, *scores)
        with interrupts_held():  # the training record and the checkpoint must match
            progress.curve.append(point)
            self._folder.save_validation(self._student.save, progress, chains, self._kept)
            self.save_state()
        return (
            f"{chains.agreement:.3f} of tokens agree, {chains.per_chain:.3f} of {config.length}"
            " accepted per chain"
        )

    def save_state(self) -> None:
        """Store a checkpoint from which training can resume."""
        self._folder.save_state(self.model, self.optimisers, self.progress)

    def _rate(self, _: int) -> float:
        """Return the current learning rate as a fraction of the peak learning rate."""
        warm_up = min(1.0, (self.progress.steps + 1) / settings.WARM_UP_STEPS)
        return warm_up * min(1.0, (1 - self.share) / (1 - settings.CONSTANT_SHARE))

    def _next_kind(self) -> str:
        """Choose randomly between answers and texts for the next batch.

        The probability of answers increases during training.
        """
        if len(self._batches) < 2:
            return next(iter(self._batches))
        answers = self._config.answers * (
            settings.FIRST_ANSWERS_SHARE + (1 - settings.FIRST_ANSWERS_SHARE) * self.share
        )
        random = np.random.default_rng((self._config.seed, self.progress.steps))
        return ANSWERS if random.random() < answers else TEXTS


def reduced_vocabulary(data: DraftData, vocab_size: int, coverage: float) -> NDArray[np.int64]:
    """Return the smallest vocabulary that covers a fraction of the training tokens.

    Answers have a higher weight than other texts. The result contains token ids in ascending order.
    The number of tokens is rounded up to a multiple of the SIMD width.

    Args:
        data: Training texts.
        vocab_size: Vocabulary size of the target.
        coverage: Fraction of the training tokens to cover; above 0, at most 1. With 1, the
            whole vocabulary is returned.
    """
    if coverage >= 1:
        return np.arange(vocab_size)
    shares = np.zeros(vocab_size)
    for chunks, weight in (
        (data.answers, settings.ANSWERS_WEIGHT),
        (data.texts, 1 - settings.ANSWERS_WEIGHT),
    ):
        counts = token_counts(chunks, vocab_size)
        shares += weight * counts / max(1, counts.sum())
    return np.sort(smallest_cover(shares, coverage, WIDTH))
