"""Load the target and the texts for training a hidden-state draft head."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

from paceline import demo
from paceline.draft_head.trained import Card
from paceline.draft_head.weights import embedding_and_head, has_plain_embeddings
from paceline.errors import ConfigError
from paceline.model.cached_lm import CachedLM
from paceline.model.identity import Sketch, model_identity
from paceline.model.loading import load_model
from paceline.training.draft_head.settings import TRAINED_LEVELS, DraftHeadTraining
from paceline.training.inputs import describe_run, hold_out, num_predicted, read_texts
from paceline.training.target_states import read_states
from paceline.training.text_chunks import TextChunk, recorded_chunks, shortened
from paceline.util.options import ModelOptions


@dataclass(frozen=True, slots=True, eq=False)
class States:
    """The target's hidden states for several text chunks, concatenated.

    Attributes:
        states: Input to the LM head after each token, [n, hidden].
        token_ids: Token ids, [n].
        positions: Positions in `token_ids` after which the same chunk contains at least
            `TRAINED_LEVELS` more tokens.
        answers: Those entries of `positions` that are inside answers.
    """

    states: Tensor
    token_ids: Tensor
    positions: Tensor
    answers: Tensor


def states_of(model: CachedLM, chunks: Sequence[TextChunk], progress: bool = False) -> States:
    """Compute the target's hidden states for text chunks.

    Args:
        model: Target model.
        chunks: Text chunks to read.
        progress: Whether to show a progress bar.
    Raises:
        UnsupportedModelError: The model does not use its declared LM head to compute logits.
    """
    hidden = [torch.empty(0, embedding_and_head(model)[1].in_features)]
    token_ids, positions, answers = ([torch.empty(0, dtype=torch.long)] for _ in range(3))
    start = 0
    for chunk, states in zip(chunks, read_states(model, chunks, progress=progress), strict=True):
        hidden.append(states[:, 0])
        token_ids.append(torch.from_numpy(chunk.token_ids).long())
        positions.append(torch.arange(start, start + max(0, len(chunk) - TRAINED_LEVELS)))
        answers.append(positions[-1][chunk.first - 1 :])
        start += len(chunk)
    columns = (hidden[1:] or hidden, token_ids, positions, answers)
    return States(*(torch.cat(column) for column in columns))


@dataclass(frozen=True, slots=True, eq=False)
class DraftHeadData:
    """The target and the texts for training a draft head.

    Attributes:
        model: Target model.
        training: Hidden states of the training text.
        held_out: Hidden states of the held-out answers, for validation.
        card: Description of the draft head, stored in the head's file.
    """

    model: CachedLM
    training: States
    held_out: States
    card: Card


def prepare(
    target: str,
    recordings: Sequence[str | Path],
    inputs: Sequence[str],
    config: DraftHeadTraining,
    models: ModelOptions,
    progress: bool = False,
) -> DraftHeadData:
    """Load the target, and compute its hidden states for training a draft head.

    Args:
        target: Target model: directory, hub id or built-in name.
        recordings: Files written by `paceline record`, with the target's answers.
        inputs: Text files, in a format that `paceline.datastore.inputs` reads.
        config: Settings of the training.
        models: Model options; only the dtype and the device are used.
        progress: Whether to show a progress bar.
    Raises:
        ConfigError: A file cannot be read or belongs to a different target, or the target's
            embeddings cannot be read.
        UnsupportedModelError: The target's hidden states cannot be read.
    """
    location = demo.target_of(target)
    model = CachedLM(load_model(location, models.dtype, models.device))
    if not has_plain_embeddings(model):
        raise ConfigError(
            f"draft-head train: got {model.architecture.name}; expected an embedding and an LM head"
            " of plain weights."
        )
    answers = [
        shortened(answer, config.context)
        for answer in recorded_chunks(recordings, model_identity(model.model)[0])
    ]
    training_answers, held_out = hold_out("draft-head train", answers, config.held_out)
    texts = read_texts("draft-head train", location, inputs, config.context)
    training = states_of(model, [*training_answers, *texts], progress)
    about = describe_run(recordings, inputs) | {
        "answers": len(training_answers),
        "answer_tokens": num_predicted(training_answers),
        "tokens": len(training.token_ids),
        "dtype": str(model.model.dtype),
    }
    sketch = Sketch.from_model(model.model).encode()
    card = Card(target, sketch, model.vocab_size, asdict(config), about)
    return DraftHeadData(model, training, states_of(model, held_out, progress), card)
