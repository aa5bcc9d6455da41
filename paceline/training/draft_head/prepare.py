"""Prepare the training of a draft head from the arguments of a command."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from paceline import demo
from paceline.draft_head.trained import Card
from paceline.draft_head.weights import readable_ends
from paceline.errors import ConfigError
from paceline.model.cached_lm import CachedLM
from paceline.model.identity import Sketch, model_identity
from paceline.model.loading import load_model
from paceline.training.draft_head.settings import DraftHeadTraining
from paceline.training.draft_head.states import States, states_of
from paceline.training.inputs import describe_run, hold_out, num_predicted, read_texts
from paceline.training.text_chunks import recorded_chunks, shortened
from paceline.util.options import ModelOptions


@dataclass(frozen=True, slots=True, eq=False)
class DraftHeadData:
    """Hold the target and the texts of the training of a draft head.

    Attributes:
        model: Target model.
        training: Hidden states to train on.
        held_out: Hidden states of the answers for validation.
        card: Description of the draft head for its file.
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
    """Read the target's hidden states for the training of its draft head.

    Args:
        target: Target: directory, hub id or built-in name.
        recordings: Files of `paceline record` with the target's answers.
        inputs: Text files, as in `paceline.datastore.inputs`.
        config: Settings of the training.
        models: Dtype and device of the target.
        progress: Show a progress bar.
    Raises:
        ConfigError: A file cannot be read or belongs to another target, or the embeddings of the
            target cannot be read.
        UnsupportedModelError: The hidden states of the target cannot be read.
    """
    location = demo.target_of(target)
    model = CachedLM(load_model(location, models.dtype, models.device))
    if not readable_ends(model):
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
