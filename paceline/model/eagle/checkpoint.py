"""A draft that reads states in a folder: a Llama of its own layers, whose ends are its target's.

`config.json` names the target, `model.safetensors` has what the draft does not borrow,
`kept_tokens.json` its reduced vocabulary.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import safetensors
import torch
from safetensors.torch import load_file
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from paceline.errors import ConfigError
from paceline.model.eagle.modules import READS, TargetStateEmbedding, TargetStateHead
from paceline.model.identity import Sketch
from paceline.model.reduced_vocabulary import FILE, read_kept
from paceline.util.files import parse_json

_CONFIG, _WEIGHTS = "config.json", "model.safetensors"
_HELP = "Train it with `paceline draft train`, or copy it again from where it came."


def build(config: LlamaConfig, token_ids: list[int]) -> PreTrainedModel:
    """Return a draft in float32 with random weights.

    Args:
        config: of its layers, with the target's vocabulary and what `READS` names. token_ids: that
            it keeps, ascending.
    """
    vocab_size, told = config.vocab_size, getattr(config, READS)
    config.vocab_size = 1  # an embedding that is replaced
    model: Any = LlamaForCausalLM(config)
    for part in (model, model.model):
        part.vocab_size = part.config.vocab_size = vocab_size
    layers = tuple(told.get("layers", ()))
    model.set_input_embeddings(
        TargetStateEmbedding(told["embedding"], told["states"], config.hidden_size, layers)
    )
    model.set_output_embeddings(
        TargetStateHead(config.hidden_size, told["states"], vocab_size, torch.tensor(token_ids))
    )
    made: PreTrainedModel = model.eval()
    return made


def is_reading(folder: str) -> bool:
    """Whether there is a draft that reads states."""
    path = Path(folder) / _CONFIG
    try:
        return path.is_file() and READS in parse_json(path.read_bytes())
    except (OSError, ValueError, TypeError):
        return False  # whoever loads it says what is wrong


def load(folder: str, dtype: torch.dtype | None, device: str | torch.device) -> PreTrainedModel:
    """Return the draft in a folder; it says nothing until it is attached to its target.

    Args:
        dtype: of its weights; None = that of the file.
    Raises:
        ConfigError: damaged or unfitting files.
    """
    try:
        config = LlamaConfig.from_pretrained(folder)
        Sketch.decode(getattr(config, READS)["sketch"])
        kept = read_kept(folder, config.vocab_size)
        if kept is None:
            raise ValueError(f"there is no {FILE}")
        tensors = load_file(Path(folder) / _WEIGHTS)
        model = build(config, kept)
        model.load_state_dict(tensors, strict=True)
        stored = next(iter(tensors.values())).dtype
    except (
        OSError,
        ValueError,
        LookupError,
        TypeError,
        RuntimeError,
        safetensors.SafetensorError,
    ) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(
            f"draft {folder!r}: got a folder that cannot be loaded ({error}); expected a draft"
            f" that reads states. {_HELP}"
        ) from error
    placed: PreTrainedModel = model.to(device, dtype or stored)
    return placed
