"""Train a draft for a target: distillation of recorded answers (Hinton et al. 2015), beside the
next tokens of any text.

Time decides how far a draft gets, so the schedule is one of minutes: the rate is constant, then
falls to nothing, while more and more steps learn from answers. Order and first weights are drawn by
seed; what is interrupted continues from its last checkpoint. The best draft so far stands in the
folder at any time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel

from paceline.cpu.simd_f32x8 import WIDTH
from paceline.errors import ConfigError
from paceline.model.cached_lm import CachedLM
from paceline.training.draft.eagle_student import EagleStudent, middle_layers
from paceline.training.draft.folder import DraftFolder, TrainingPoint, TrainingProgress
from paceline.training.draft.settings import DraftTraining
from paceline.training.draft.start import begin_as
from paceline.training.draft.student import IndependentStudent, Student
from paceline.training.optimisers import Optimisers
from paceline.training.target_states import read_states
from paceline.training.text_chunks import Batches, TextChunk, fewest, shortened, token_counts

_WARM_UP = 50  # steps
_CONSTANT = 0.4  # share of the time before the rate falls
_FIRST_SHARE = 0.4  # of the steps that learn from answers, of their share in the end
_ANSWERS_WEIGHT = 0.7  # in the choice of the kept tokens, beside texts
_CLIP = 1.0  # largest norm of a gradient
_EMBEDDING_LR = 0.5  # of the highest rate
_SMOOTHED = 50  # steps that a loss in the curve is the mean of
ANSWERS, TEXTS, _HELD_OUT = "answers", "texts", "held out"

Report = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class DraftData:
    """What is learnt from, and what judges.

    Attributes:
        learnt: stretches by kind, "answers" and "texts". held_out: answers.
    """

    learnt: dict[str, list[TextChunk]]
    held_out: list[TextChunk]

    def read(self, target: CachedLM, reads_at: float, progress: bool = False) -> DraftData:
        """Return the same with the target's states at every token, where the target is read once.

        Args:
            reads_at: as in `DraftTraining`.
        Raises:
            UnsupportedModelError: its states cannot be read.
        """
        kinds = [*self.learnt, _HELD_OUT]
        stretches = [*self.learnt.values(), self.held_out]
        layers = middle_layers(target.model, reads_at)
        states = read_states(
            target, [one for group in stretches for one in group], layers, progress
        )
        read = {
            kind: [replace(one, states=next(states)) for one in group]
            for kind, group in zip(kinds, stretches, strict=True)
        }
        return DraftData(read, read.pop(_HELD_OUT))

    def of_any_kind(self) -> list[TextChunk]:
        """What is learnt, answers first."""
        return [*self.learnt[ANSWERS], *self.learnt[TEXTS]]

    @staticmethod
    def of(
        answers: Sequence[TextChunk], texts: Sequence[TextChunk], config: DraftTraining
    ) -> DraftData:
        """Hold back each n-th answer.

        Raises:
            ConfigError: too few answers.
        """
        if len(answers) < config.held_out:
            raise ConfigError(
                f"draft train: got {len(answers)} answers, each {config.held_out}th of which is"
                f" held back; expected at least {config.held_out}. Record more, or lower held_out."
            )
        kept = [
            shortened(one, config.context)
            for place, one in enumerate(answers)
            if place % config.held_out
        ]
        return DraftData({ANSWERS: kept, TEXTS: list(texts)}, list(answers[:: config.held_out]))


def kept_tokens(material: DraftData, vocab_size: int, coverage: float) -> NDArray[np.int64]:
    """Return the fewest tokens, ascending, that make up a share `coverage` of what is to be
    predicted; answers count most.

    Their number is rounded up to what a product takes at once.
    """
    shares = np.zeros(vocab_size)
    for kind, weight in ((ANSWERS, _ANSWERS_WEIGHT), (TEXTS, 1 - _ANSWERS_WEIGHT)):
        counts = token_counts(material.learnt[kind], vocab_size)
        shares += weight * counts / max(1, counts.sum())
    return np.arange(vocab_size) if coverage >= 1 else np.sort(fewest(shares, coverage, WIDTH))


class DraftTrainer:
    """A draft while it is trained.

    Args:
        folder: where it goes, and its checkpoints.
        clock: seconds that have passed.
    Attributes:
        model: the draft, in float32. done: how far it is.
    Raises:
        ConfigError: a checkpoint, or the draft it is to begin as, that cannot be used.
    """

    def __init__(
        self,
        target: PreTrainedModel,
        material: DraftData,
        config: DraftTraining,
        folder: DraftFolder,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._clock = clock
        self._config, self._folder, self._held_out = config, folder, material.held_out
        vocab_size = int(target.config.get_text_config(decoder=True).vocab_size)
        kept = kept_tokens(material, vocab_size, config.coverage)
        self._kept = torch.from_numpy(kept)
        self._student: Student
        if config.uses_target_states:
            self._student = EagleStudent(
                target, str(folder.about["target"]), config, kept, material.of_any_kind()
            )
        else:
            self._student = IndependentStudent(target, config, kept)
        self.model = self._student.model
        if config.start:
            begin_as(self.model, config.start)
        self._optimisers = Optimisers(self.model, config.lr, _EMBEDDING_LR * config.lr)
        self.done = folder.restore(self.model, self._optimisers) or TrainingProgress()
        self._kinds = [kind for kind, stretches in material.learnt.items() if stretches]
        self._batches: dict[str, Iterator[list[TextChunk]]] = {
            kind: Batches(material.learnt[kind], config.batch, config.seed).after(
                self.done.batches[kind]
            )
            for kind in self._kinds
        }
        self._losses: dict[str, list[float]] = {kind: [] for kind in self._kinds}

    def run(self, report: Report) -> None:
        """Train until the time is over, judging and saving now and then."""
        config, done = self._config, self.done
        seconds, last = 60 * config.minutes, self._clock()
        due = done.seconds + seconds / config.validations
        while done.seconds < seconds:
            self._step(done.seconds / seconds)
            now = self._clock()
            done.seconds, last = done.seconds + now - last, now
            if done.seconds >= min(due, seconds):
                self._validate(report)
                due += seconds / config.validations

    def _step(self, share: float) -> None:
        """Learn from one batch.

        Args:
            share: of the time that is over.
        """
        kind, done = self._next_kind(share), self.done
        batch = next(self._batches[kind])
        done.batches[kind] += 1
        loss = self._student.loss(batch, done.steps)
        if not torch.isfinite(loss):
            raise ConfigError(
                f"draft train: lr: got {self._config.lr:g}, and a loss that is not finite;"
                " expected less. Lower it."
            )
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), _CLIP)
        self._optimisers.step(
            min(1.0, (done.steps + 1) / _WARM_UP) * min(1.0, (1 - share) / (1 - _CONSTANT))
        )
        self._losses[kind] = [*self._losses[kind], loss.item()][-_SMOOTHED:]
        done.steps, done.tokens = done.steps + 1, done.tokens + sum(map(len, batch))

    def _next_kind(self, share: float) -> str:
        """Draw what the next step learns from; at first more often from texts, if there are any."""
        if len(self._kinds) < 2:
            return self._kinds[0]
        answers = self._config.answers * (_FIRST_SHARE + (1 - _FIRST_SHARE) * share)
        return (
            ANSWERS
            if np.random.default_rng((self._config.seed, self.done.steps)).random() < answers
            else TEXTS
        )

    def _validate(self, report: Report) -> None:
        """Judge the draft on what was held back, and keep it where it is the best so far."""
        found = self._student.judge(self._held_out, self._config.length)
        losses = {kind: float(np.mean(values)) for kind, values in self._losses.items() if values}
        done = self.done
        done.curve.append(
            TrainingPoint(
                done.seconds / 60, done.steps, done.tokens, losses, found.agreement, found.per_chain
            )
        )
        self._folder.checkpoint(self.model, self._optimisers, done, found, self._kept)
        told = ", ".join(f"loss of {kind} {value:.3f}" for kind, value in losses.items())
        report(
            f"{done.seconds / 60:.1f} min, step {done.steps}: {told}; {found.agreement:.3f} of"
            f" tokens agree, {found.per_chain:.3f} of {self._config.length} accepted a chain"
        )
