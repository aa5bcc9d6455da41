"""What a training needs, out of the names on a command line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import transformers

from paceline import demo
from paceline.draft_head.trained import Card
from paceline.draft_head.weights import readable_ends
from paceline.errors import ConfigError
from paceline.model.cached_lm import CachedLM
from paceline.model.identity import Sketch, model_identity
from paceline.model.loading import load_model
from paceline.model.tokenizer_loading import load_tokenizer
from paceline.training.draft_head.settings import DraftHeadTraining
from paceline.training.draft_head.states import States, states_of
from paceline.training.text_chunks import TextChunk, recorded, shortened, texts
from paceline.util.machine import processor


@dataclass(frozen=True, slots=True, eq=False)
class DraftHeadData:
    """Attributes: model: the target. learnt, held_out: what foresight learns from, and what
    judges it. card: of the file.
    """

    model: CachedLM
    learnt: States
    held_out: States
    card: Card


def prepare(
    target: str,
    recordings: Sequence[str | Path],
    inputs: Sequence[str],
    config: DraftHeadTraining,
    dtype: str,
    device: str,
    progress: bool = False,
) -> DraftHeadData:
    """Return what foresight learns from.

    Args:
        target: as on a command line. recordings: files of its answers. inputs: texts, as in
            `paceline.datastore.inputs`.
    Raises:
        ConfigError: something that cannot be read or does not belong together; a model whose
            embeddings cannot be read.
        UnsupportedModelError: a model whose hidden states cannot be read.
    """
    place = demo.target_of(target)
    model = CachedLM(load_model(place, dtype, device))
    if not readable_ends(model):
        raise ConfigError(
            f"draft-head train: got {model.architecture.name}; expected an embedding and an LM head"
            " of plain weights."
        )
    fingerprint = model_identity(model.model)[0]
    answers = [shortened(one, config.context) for one in recorded(recordings, fingerprint)]
    if len(answers) < config.held_out:
        raise ConfigError(
            f"draft-head train: got {len(answers)} answers, each {config.held_out}th of which is"
            f" held back; expected at least {config.held_out}. Record more, or lower held_out."
        )
    tokenizer = load_tokenizer(None, place) if inputs else None
    if inputs and tokenizer is None:
        raise ConfigError(
            f"draft-head train: got texts and no tokenizer beside {target!r}; expected one. Leave"
            " the texts out."
        )
    kept = [one for row, one in enumerate(answers) if row % config.held_out]
    found = texts(inputs, tokenizer, config.context) if inputs else []
    learnt = states_of(model, [*kept, *found], progress)
    held_out = states_of(model, answers[:: config.held_out], progress)
    about = {
        "recordings": [Path(path).name for path in recordings],
        "texts": [Path(path).name for path in inputs],
        "answers": len(kept),
        "answer_tokens": _said(kept),
        "tokens": len(learnt.token_ids),
        "dtype": str(model.model.dtype),
        "threads": torch.get_num_threads(),
        "processor": processor(),
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
    }
    return DraftHeadData(
        model,
        learnt,
        held_out,
        Card(
            target, Sketch.from_model(model.model).encode(), model.vocab_size, asdict(config), about
        ),
    )


def _said(stretches: Sequence[TextChunk]) -> int:
    return sum(len(stretch) - stretch.first for stretch in stretches)
