"""Load an engine's target model with transformers or llama.cpp."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import torch
from transformers import PreTrainedModel

from paceline import demo
from paceline.core.request import Request
from paceline.core.sampling_params import SamplingParams
from paceline.errors import ConfigError, did_you_mean
from paceline.model.architecture import Architecture
from paceline.model.forward_mode import mode_of
from paceline.model.loading import load_model
from paceline.util.options import EngineName

if TYPE_CHECKING:
    from paceline.llama_cpp.gguf_model import GgufModel

LoadedModel: TypeAlias = "PreTrainedModel | GgufModel"


def load_target(
    model: str | Path | LoadedModel,
    engine: EngineName,
    dtype: str | torch.dtype = "auto",
    device: str | torch.device = "auto",
    unpack: bool = True,
    weights: str | None = None,
) -> PreTrainedModel | GgufModel:
    """Load the target model for transformers or llama.cpp.

    Args:
        model: Directory, hub id, GGUF file, built-in name or loaded model.
        engine: "transformers" or "llama.cpp".
        dtype: Data type of the weights, as in `load_model`. With llama.cpp, which computes in the
            formats of the file, `dtype` must be "auto".
        device: Device of the model, as in `load_model`.
        unpack: Whether to convert a GGUF file to a checkpoint, as in `load_model`. llama.cpp
            ignores `unpack`.
        weights: Format into which the weights are packed, as in `load_model`. With llama.cpp,
            `weights` must be None.
    Returns:
        The loaded model. If `model` is already loaded, it is returned.
    Raises:
        ConfigError: As in `load_model`. Also raised if `engine` is unknown or cannot run the model.
    """
    if not isinstance(model, str | Path | PreTrainedModel):
        from paceline.llama_cpp.gguf_model import GgufModel

        if isinstance(model, GgufModel):
            return model
    if engine == "transformers":
        return load_model(model, dtype, device, unpack, weights)
    if engine != "llama.cpp":
        names = ("transformers", "llama.cpp")
        raise ConfigError(f"\0engine\0: got {engine!r}.{did_you_mean(str(engine), names)}")
    if str(dtype) != "auto":
        raise ConfigError(
            f"\0dtype\0: got {dtype!r} with \0engine='llama.cpp'\0, which computes in the formats"
            " of the file; expected 'auto'. Leave it out."
        )
    if weights is not None:
        raise ConfigError(
            f"\0weights\0: got {weights!r} with \0engine='llama.cpp'\0, whose GGUF files are"
            " already packed; expected none. Leave it out."
        )
    from paceline.llama_cpp.gguf_model import GgufModel

    source = demo.target_of(model) if isinstance(model, str) else model
    return GgufModel(source, on_gpu=str(device) != "cpu")


def context_length(model: LoadedModel) -> int:
    """Return the model's maximum text length, in tokens."""
    if isinstance(model, PreTrainedModel):
        return Architecture.from_model(model).context_length
    return model.context_length


def next_logits(model: LoadedModel, token_ids: list[int]) -> torch.Tensor:
    """Run the model over a text, and return the logits for the next token, [vocab]."""
    if isinstance(model, PreTrainedModel):
        with mode_of(model)():
            logits = model(torch.tensor([token_ids], device=model.device)).logits
        return logits[0, -1]  # type: ignore[no-any-return]
    from paceline.llama_cpp.target import GgufTarget

    target = GgufTarget(model, torch.get_num_threads())
    request = Request(token_ids, SamplingParams())
    target.open(request)
    while request.pending > target.prefill_chunk:
        target.feed([request])
    return target.feed([request])[0, 0]
