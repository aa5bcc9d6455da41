"""Build and load EAGLE-style draft models.

These draft models place Llama layers between the target's embedding and LM head.

In a draft model's folder, `config.json` names the target, and `model.safetensors` contains the
weights of the draft layers. `kept_tokens.json` lists the token ids of the reduced draft
vocabulary.
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
_HELP = "Train it with `paceline draft train`, or copy it again from its source."


def build(config: LlamaConfig, token_ids: list[int]) -> PreTrainedModel:
    """Create an EAGLE-style draft model in float32 with random weights.

    Args:
        config: Configuration of the draft layers, with the vocabulary size of the target. Its
            `reads_states_of` entry describes the target.
        token_ids: Token ids in the reduced vocabulary, in ascending order.
    """
    vocab_size, target = config.vocab_size, getattr(config, READS)
    config.vocab_size = 1  # the embedding is replaced below
    model: Any = LlamaForCausalLM(config)
    for part in (model, model.model):
        part.vocab_size = part.config.vocab_size = vocab_size
    layers = tuple(target.get("layers", ()))
    model.set_input_embeddings(
        TargetStateEmbedding(target["embedding"], target["states"], config.hidden_size, layers)
    )
    model.set_output_embeddings(
        TargetStateHead(config.hidden_size, target["states"], vocab_size, torch.tensor(token_ids))
    )
    draft: PreTrainedModel = model.eval()
    return draft


def is_reading(folder: str) -> bool:
    """Return True if a folder contains an EAGLE-style draft model."""
    path = Path(folder) / _CONFIG
    try:
        return path.is_file() and READS in parse_json(path.read_bytes())
    except (OSError, ValueError, TypeError):
        return False  # loading the folder raises the error


def load(folder: str, dtype: torch.dtype | None, device: str | torch.device) -> PreTrainedModel:
    """Load an EAGLE-style draft model, which the caller then attaches to a target.

    Args:
        folder: Folder of the draft model.
        dtype: Dtype of the weights; None uses the dtype in the file.
        device: Device of the weights.
    Raises:
        ConfigError: The files are damaged or do not match each other.
    """
    try:
        config = LlamaConfig.from_pretrained(folder)
        Sketch.decode(getattr(config, READS)["sketch"])
        token_ids = read_kept(folder, config.vocab_size)
        if token_ids is None:
            raise ValueError(f"there is no {FILE}")
        tensors = load_file(Path(folder) / _WEIGHTS)
        model = build(config, token_ids)
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
            f"draft {folder!r}: got a folder that cannot be loaded ({error}); expected an"
            f" EAGLE-style draft model. {_HELP}"
        ) from error
    placed: PreTrainedModel = model.to(device, dtype or stored)
    return placed
