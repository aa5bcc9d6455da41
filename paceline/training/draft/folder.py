"""Store a draft model on disk during training.

The best draft model so far is in `model.safetensors` (bfloat16), `config.json` and, except for
EAGLE-3 heads, `kept_tokens.json`. `training.json` records how it was trained and evaluated.
`state.safetensors` is the checkpoint from which training can resume; it is deleted at the end.
"""

from __future__ import annotations

import copy
import json
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from transformers import PreTrainedModel

from paceline.model.reduced_vocabulary import save_kept
from paceline.report.documents import DocumentKind, read_document, write_document
from paceline.training.checkpoint import CheckpointFile, require_same_settings
from paceline.training.draft.chains import Chains
from paceline.training.loop import TrainingProgress
from paceline.training.optimisers import restore_state, state_tensors
from paceline.util.files import make_folder

RECORD, STATE = "training.json", "state.safetensors"


@dataclass(frozen=True, slots=True)
class TrainingPoint:
    """A point on the learning curve, from one validation.

    Attributes:
        minutes: Training time so far, in minutes.
        steps: Number of optimiser steps so far.
        tokens: Number of training tokens so far; a token that was used twice counts twice.
        losses: Mean loss over the most recent steps, for "answers" and "texts".
        agreement: Fraction of held-out tokens that equal the draft model's most likely token.
        per_chain: Mean number of accepted tokens per draft chain on held-out answers.
    """

    minutes: float
    steps: int
    tokens: int
    losses: dict[str, float]
    agreement: float
    per_chain: float


@dataclass(slots=True)
class DraftProgress(TrainingProgress):
    """The progress of training a draft model.

    Attributes:
        tokens: Number of training tokens so far; a token that was used twice counts twice.
        batches: Number of batches used so far, for "answers" and "texts".
        curve: Learning curve, with one point per validation.
    """

    tokens: int = 0
    batches: dict[str, int] = field(default_factory=lambda: {"answers": 0, "texts": 0})
    curve: list[TrainingPoint] = field(default_factory=list)

    @property
    def best(self) -> TrainingPoint:
        """Return the first point with the highest number of accepted tokens per chain."""
        return max(self.curve, key=lambda point: point.per_chain)


@dataclass(frozen=True, slots=True)
class TrainingRecord:
    """Records how a draft model was trained.

    Attributes:
        settings: Settings that must not change when the training run resumes.
        about: Training texts, machine and library versions.
        note: Note from the user, such as sources and licences.
        kept: Number of tokens in the reduced draft vocabulary.
        curve: Learning curve, with one point per validation.
        best: Point on the curve at which the draft model in the folder was saved.
        chains: Acceptance of draft chains on held-out answers at that point.
    """

    settings: dict[str, Any]
    about: dict[str, Any]
    note: str
    kept: int
    curve: list[TrainingPoint]
    best: TrainingPoint
    chains: Chains


RECORD_KIND = DocumentKind("draft training", 1, TrainingRecord)


class DraftFolder:
    """Manages a draft model's folder during training.

    Args:
        path: Folder of the draft model.
        settings: Settings that must not change when the training run resumes.
        about: Training texts, machine and library versions.
        note: Note from the user, such as sources and licences.
    Raises:
        ConfigError: The folder cannot be written, or contains a training run with different
            settings.
    """

    def __init__(
        self, path: str | Path, settings: dict[str, Any], about: dict[str, Any], note: str = ""
    ) -> None:
        self.path = Path(path)
        make_folder(self.path)
        self.about = about
        self._settings, self._note = json.loads(json.dumps(settings)), note
        self._state = CheckpointFile(self.path / STATE, "paceline draft state", 1)
        if self._state.exists:
            require_same_settings(self.path, self._settings, self._state.value("settings"))
        elif self.finished:
            require_same_settings(self.path, self._settings, self.record().settings)

    @property
    def finished(self) -> bool:
        """Return whether the folder contains a completed training run."""
        return (self.path / RECORD).exists() and not self._state.exists

    def record(self) -> TrainingRecord:
        """Return the training record of the draft model in the folder.

        Raises:
            ConfigError: The record is missing or damaged.
        """
        return read_document(self.path / RECORD, RECORD_KIND)

    def restore(self, model: nn.Module, optimisers: Sequence[Optimizer]) -> DraftProgress:
        """Load the checkpoint, if there is one, and return the progress of training.

        Args:
            model: Draft model that receives the weights.
            optimisers: Optimisers that receive the optimiser state.
        Raises:
            ConfigError: The checkpoint is damaged.
        """
        if not self._state.exists:
            return DraftProgress()
        values = self._state.value("progress")
        # The checkpoint does not contain tied output embeddings.
        model.load_state_dict(self._state.tensors("model"), strict=False)
        restore_state(optimisers, self._state.tensors("optimiser"))
        curve = [TrainingPoint(**point) for point in values.pop("curve")]
        return DraftProgress(**values, curve=curve)

    def save_validation(
        self, save: Callable[[Path], None], progress: DraftProgress, chains: Chains, kept: int
    ) -> None:
        """Write the training record, and the model if it is the best one so far.

        Args:
            save: Function that writes the model to an existing folder.
            progress: Training progress, including the curve.
            chains: Acceptance of draft chains at the last validation.
            kept: Number of tokens in the reduced draft vocabulary.
        """
        best = progress.best
        if best is progress.curve[-1]:
            _replace_files(save, self.path)
        else:
            chains = self.record().chains
        record = TrainingRecord(
            self._settings, self.about, self._note, kept, progress.curve, best, chains
        )
        write_document(self.path / RECORD, RECORD_KIND, record)

    def save_state(
        self, model: nn.Module, optimisers: Sequence[Optimizer], progress: DraftProgress
    ) -> None:
        """Write the checkpoint from which training can resume."""
        weights = {
            name: weight.detach()
            for name, weight in model.named_parameters()
            if weight.requires_grad
        }
        self._state.save(
            {"settings": self._settings, "progress": asdict(progress)},
            {"model": weights, "optimiser": state_tensors(optimisers)},
        )

    def finish(self) -> TrainingRecord:
        """Delete the checkpoint, and return the training record."""
        record = self.record()
        self._state.delete()
        return record


def save_draft(model: PreTrainedModel, token_ids: Sequence[int], folder: Path) -> None:
    """Write a bfloat16 copy of a draft model, and its reduced vocabulary.

    Args:
        model: Draft model to save.
        token_ids: Token ids of the reduced draft vocabulary.
        folder: Existing folder that receives the files.
    """
    copy.deepcopy(model).to(torch.bfloat16).save_pretrained(folder)
    save_kept(folder, token_ids, int(model.config.vocab_size))


def _replace_files(save: Callable[[Path], None], folder: Path) -> None:
    """Write a model to a temporary folder, then move its files to the final folder.

    The weights are moved last.

    Args:
        save: Function that writes the model to an existing folder.
        folder: Folder whose files are replaced.
    """
    with tempfile.TemporaryDirectory(dir=folder, suffix=".tmp") as partial:
        save(Path(partial))
        for path in sorted(Path(partial).iterdir(), key=lambda path: path.suffix == ".safetensors"):
            path.chmod(0o644)  # safetensors creates files with mode 0600
            os.replace(path, folder / path.name)
