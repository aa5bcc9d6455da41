"""Load the target and the texts for training a draft model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from paceline import demo
from paceline.model.cached_lm import CachedLM
from paceline.model.eagle.modules import embedding_and_lm_head
from paceline.model.identity import model_identity
from paceline.model.loading import load_model
from paceline.training.draft.eagle3_student import eagle3_layers
from paceline.training.draft.eagle_student import middle_layers
from paceline.training.draft.folder import DraftFolder
from paceline.training.draft.settings import DraftTraining
from paceline.training.inputs import describe_run, hold_out, num_predicted, read_texts
from paceline.training.target_states import read_states
from paceline.training.text_chunks import TextChunk, recorded_chunks, shortened
from paceline.util.files import digest_of

# Settings that may change when training resumes.
_CHANGEABLE = ("minutes", "note", "validations")


@dataclass(frozen=True, slots=True)
class DraftData:
    """The texts for training a draft model.

    Attributes:
        answers: The target's answers, for training.
        texts: Other texts, for training.
        held_out: The target's answers, for validation.
    """

    answers: list[TextChunk]
    texts: list[TextChunk]
    held_out: list[TextChunk]

    @property
    def training(self) -> list[TextChunk]:
        """Return all text chunks to train on: first the answers, then the other texts."""
        return [*self.answers, *self.texts]

    @staticmethod
    def split(
        answers: Sequence[TextChunk], texts: Sequence[TextChunk], config: DraftTraining
    ) -> DraftData:
        """Hold out every n-th answer for validation, where n is `config.held_out`.

        Args:
            answers: Answers of the target.
            texts: Other texts, which are all used for training.
            config: Settings of the training. Answers for training are cut to `config.context`
                tokens.
        Raises:
            ConfigError: There are too few answers.
        """
        training, held_out = hold_out("draft train", answers, config.held_out)
        return DraftData(
            [shortened(answer, config.context) for answer in training], list(texts), held_out
        )

    def with_states(
        self, target: CachedLM, config: DraftTraining, progress: bool = False
    ) -> DraftData:
        """Return the same text chunks with the target's hidden states.

        Args:
            target: Target model, which reads the chunks.
            config: Settings of the training, which determine the layers to read.
            progress: Whether to show a progress bar.
        Raises:
            UnsupportedModelError: The target's hidden states cannot be read.
        """
        groups = (self.answers, self.texts, self.held_out)
        chunks = [chunk for group in groups for chunk in group]
        layers = (
            eagle3_layers(target.model)
            if config.kind == "eagle3"
            else middle_layers(target.model, config.reads_at)
        )
        states = read_states(target, chunks, layers, progress)
        return DraftData(
            *([replace(chunk, states=next(states)) for chunk in group] for group in groups)
        )


def prepare(
    target: str,
    recordings: Sequence[str | Path],
    inputs: Sequence[str],
    out: Path,
    config: DraftTraining,
) -> tuple[PreTrainedModel, DraftData, DraftFolder]:
    """Load the target and the training texts, and prepare the draft model's folder.

    Args:
        target: Target model: directory, hub id or built-in name.
        recordings: Files written by `paceline record`, with the target's answers.
        inputs: Text files, in a format that `paceline.datastore.inputs` reads.
        out: Folder for the draft model.
        config: Settings of the training.
    Raises:
        ConfigError: A file cannot be read or belongs to a different target, or the folder contains
            a training run with different settings.
    """
    location = demo.target_of(target)
    model = load_model(location, "auto" if config.uses_target_states else torch.float32)
    fingerprint = model_identity(model)[0]
    answers = recorded_chunks(recordings, fingerprint)
    texts = read_texts("draft train", location, inputs, config.context)
    data = DraftData.split(answers, texts, config)
    if config.uses_target_states:
        embedding_and_lm_head(model)  # raise errors before reading the states, which is slow
    settings: dict[str, Any] = {
        "target_fingerprint": fingerprint,
        "inputs": digest_of({"ids": [_checksums(answers), _checksums(texts)]}),
    }
    settings |= {name: value for name, value in asdict(config).items() if name not in _CHANGEABLE}
    about = describe_run(recordings, inputs) | {
        "target": target,
        "minutes": config.minutes,
        "answers": len(answers),
        "answer_tokens": num_predicted(data.answers),
        "held_out": len(data.held_out),
        "with_distribution": num_predicted([chunk for chunk in data.answers if chunk.top]),
        "text_tokens": num_predicted(data.texts),
    }
    return model, data, DraftFolder(out, settings, about, config.note)


def _checksums(chunks: Sequence[TextChunk]) -> list[int]:
    """Return the number of text chunks, followed by a checksum of each chunk."""
    return [
        len(chunks),
        *(int(chunk.token_ids.astype("int64") @ range(1, len(chunk) + 1)) for chunk in chunks),
    ]
