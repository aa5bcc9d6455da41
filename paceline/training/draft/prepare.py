"""What a training needs, out of the names on a command line."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import PreTrainedModel

from paceline import demo
from paceline.errors import ConfigError
from paceline.model.eagle.modules import embedding_and_lm_head
from paceline.model.identity import model_identity
from paceline.model.loading import load_model
from paceline.model.tokenizer_loading import load_tokenizer
from paceline.training.draft.folder import DraftFolder
from paceline.training.draft.settings import DraftTraining
from paceline.training.draft.train import ANSWERS, TEXTS, DraftData
from paceline.training.text_chunks import TextChunk, recorded, texts
from paceline.util.files import digest_of

# settings that a training may be continued without
_NOT_THE_SAME = ("minutes", "note", "validations")


def prepare(
    target: str,
    recordings: Sequence[str | Path],
    inputs: Sequence[str],
    out: Path,
    config: DraftTraining,
) -> tuple[PreTrainedModel, DraftData, DraftFolder]:
    """Return the target, what its draft learns from, and the draft's folder.

    Args:
        target: as on a command line. recordings: files of its answers. inputs: texts, as in
            `paceline.datastore.inputs`.
    Raises:
        ConfigError: something that cannot be read or does not belong together; a training of other
            settings is in the folder.
    """
    place = demo.target_of(target)
    model = load_model(place, "auto" if config.uses_target_states else torch.float32)
    fingerprint = model_identity(model)[0]
    answers = recorded(recordings, fingerprint)
    tokenizer = load_tokenizer(None, place) if inputs else None
    if inputs and tokenizer is None:
        raise ConfigError(
            f"draft train: got texts and no tokenizer beside {target!r}; expected one. Leave the"
            " texts out."
        )
    found = texts(inputs, tokenizer, config.context) if inputs else []
    material = DraftData.of(answers, found, config)
    if config.uses_target_states:
        embedding_and_lm_head(model)  # or say at once what is missing
    settings: dict[str, Any] = {
        "target_fingerprint": fingerprint,
        "inputs": digest_of({"ids": [_sum(answers), _sum(found)]}),
    }
    settings |= {name: value for name, value in asdict(config).items() if name not in _NOT_THE_SAME}
    about = {
        "target": target,
        "minutes": config.minutes,
        "recordings": [Path(path).name for path in recordings],
        "texts": [Path(path).name for path in inputs],
        "answers": len(answers),
        "answer_tokens": _predicted(material.learnt[ANSWERS]),
        "held_out": len(material.held_out),
        "with_distribution": _predicted([one for one in material.learnt[ANSWERS] if one.top]),
        "text_tokens": _predicted(material.learnt[TEXTS]),
        "threads": torch.get_num_threads(),
        "processor": platform.processor(),
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
    }
    return model, material, DraftFolder(out, settings, about, config.note)


def _sum(stretches: Sequence[TextChunk]) -> list[int]:
    """Return a little that changes where stretches do."""
    return [
        len(stretches),
        *(int(one.token_ids.astype("int64") @ range(1, len(one) + 1)) for one in stretches),
    ]


def _predicted(stretches: Sequence[TextChunk]) -> int:
    return sum(len(stretch) - stretch.first for stretch in stretches)
