"""A draft on disk: a plain checkpoint with its kept tokens, how it was made, and, while it is
trained, where it was.

`model.safetensors` (bfloat16), `config.json` and `kept_tokens.json` are the best draft so far;
`training.json` says how it was made and judged; `state.safetensors` is what continues the training,
and goes when that is done.
"""

from __future__ import annotations

import copy
import json
import os
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import safetensors
import torch
from safetensors.torch import save
from torch import Tensor
from transformers import PreTrainedModel

from paceline.errors import ConfigError
from paceline.model.reduced_vocabulary import save_kept
from paceline.report.documents import DocumentKind, read_document, write_document
from paceline.training.draft.chains import Chains
from paceline.training.optimisers import Optimisers
from paceline.util.files import digest_of, make_folder, write_atomically

RECORD, STATE = "training.json", "state.safetensors"
_KIND, _VERSION = "paceline draft state", 1
_MODEL, _STEPPED = "model.", "optimiser."


@dataclass(frozen=True, slots=True)
class TrainingPoint:
    """How far a draft was after so many minutes: mean losses of the last steps by what they
    learnt, and what it was worth.
    """

    minutes: float
    steps: int
    tokens: int
    losses: dict[str, float]
    agreement: float
    per_chain: float


@dataclass(slots=True)
class TrainingProgress:
    """How far a training is: seconds, steps, tokens, batches by kind, and what it was judged at."""

    seconds: float = 0.0
    steps: int = 0
    tokens: int = 0
    batches: dict[str, int] = field(default_factory=lambda: {"answers": 0, "texts": 0})
    curve: list[TrainingPoint] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class TrainingRecord:
    """How a draft was made.

    Attributes:
        settings: everything that makes one training differ from another.
        about: what it learnt from, and where it ran. note: of whoever made it.
        kept: tokens of the reduced vocabulary. curve: see `TrainingPoint`.
        best: the point of the curve that the draft in the folder is of.
        chains: what it was worth then, on the answers held back.
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
    """The folder while its draft is trained.

    Args:
        settings: what makes this training differ from others.
        about, note: as in `TrainingRecord`.
    Raises:
        ConfigError: the folder cannot be written, or a training of other settings was begun there.
    """

    def __init__(
        self, path: str | Path, settings: dict[str, Any], about: dict[str, Any], note: str = ""
    ) -> None:
        self.path = Path(path)
        make_folder(self.path)
        self.about = about
        self._settings, self._note = json.loads(json.dumps(settings)), note
        for found in (
            self._state_settings(),
            None if not self.finished else self.record().settings,
        ):
            for name in {} if found is None else {**self._settings, **found}:
                if found is not None and found.get(name) != self._settings.get(name):
                    raise ConfigError(
                        f"draft {str(path)!r}: {name}: got {self._settings.get(name)!r}; expected"
                        f" {found.get(name)!r}, with which its training was begun. Continue with"
                        " the same settings, or name another folder."
                    )

    @property
    def finished(self) -> bool:
        """Whether a training has come to its end here."""
        return (self.path / RECORD).exists() and not (self.path / STATE).exists()

    def record(self) -> TrainingRecord:
        """Return how the draft that is there was made.

        Raises:
            ConfigError: there is none, or it is damaged.
        """
        return read_document(self.path / RECORD, RECORD_KIND)

    def restore(self, model: PreTrainedModel, optimisers: Optimisers) -> TrainingProgress | None:
        """Put model and optimisers back to where the last checkpoint was; None where there is none.

        Raises:
            ConfigError: the checkpoint is damaged.
        """
        if not (self.path / STATE).exists():
            return None
        tensors: dict[str, Tensor] = {}
        with self._opened() as file:
            values = json.loads(file.metadata()["progress"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (no mapping)
        model.load_state_dict(_part(tensors, _MODEL), strict=False)  # the head is the embedding
        optimisers.restore(_part(tensors, _STEPPED))
        return TrainingProgress(
            **{**values, "curve": [TrainingPoint(**point) for point in values["curve"]]}
        )

    def checkpoint(
        self,
        model: PreTrainedModel,
        optimisers: Optimisers,
        done: TrainingProgress,
        found: Chains,
        kept: Tensor,
    ) -> None:
        """Write where the training is, and the draft where it is the best so far.

        Args:
            found: what it is worth now. kept: its reduced vocabulary.
        """
        best = max(done.curve, key=lambda point: point.per_chain)
        if best is done.curve[-1]:
            _save_model(model, self.path)
            save_kept(self.path, kept.tolist(), int(model.config.vocab_size))
        chains = found if best is done.curve[-1] else self.record().chains
        made = TrainingRecord(
            self._settings, self.about, self._note, len(kept), done.curve, best, chains
        )
        write_document(self.path / RECORD, RECORD_KIND, made)
        weights = {_MODEL + name: weight.detach() for name, weight in model.named_parameters()}
        stepped = {_STEPPED + name: value for name, value in optimisers.tensors().items()}
        content = {
            "kind": _KIND,
            "version": str(_VERSION),
            "settings": json.dumps(self._settings),
            "progress": json.dumps(asdict(done)),
        }
        content["check"] = digest_of(content)
        write_atomically(self.path / STATE, save(weights | stepped, content))

    def finish(self) -> TrainingRecord:
        """Remove the checkpoint, and return how the draft was made."""
        made = self.record()
        (self.path / STATE).unlink(missing_ok=True)
        return made

    def _state_settings(self) -> dict[str, Any] | None:
        if not (self.path / STATE).exists():
            return None
        with self._opened() as file:
            settings: dict[str, Any] = json.loads(file.metadata()["settings"])
            return settings

    def _opened(self) -> Any:
        """Return the checkpoint, whose metadata is sound."""
        path = self.path / STATE
        try:
            file: Any = safetensors.safe_open(path, "pt")
            content = dict(file.metadata() or {})
            check = content.pop("check", "")
            sound = (
                content.get("kind") == _KIND
                and content.get("version") == str(_VERSION)
                and check == digest_of(content)
            )
        except (OSError, safetensors.SafetensorError):
            sound = False
        if not sound:
            raise ConfigError(
                f"draft state {str(path)!r}: got a damaged file; expected a checkpoint. Delete it,"
                " and begin anew."
            )
        return file


def _part(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {
        name.removeprefix(prefix): tensor
        for name, tensor in tensors.items()
        if name.startswith(prefix)
    }


def _save_model(model: PreTrainedModel, folder: Path) -> None:
    """Write a bfloat16 copy under a temporary name, then move its files into place, the weights
    last.
    """
    with tempfile.TemporaryDirectory(dir=folder, suffix=".tmp") as partial:
        copy.deepcopy(model).to(torch.bfloat16).save_pretrained(partial)
        for path in sorted(Path(partial).iterdir(), key=lambda path: path.suffix == ".safetensors"):
            path.chmod(0o644)  # safetensors writes 0600
            os.replace(path, folder / path.name)
