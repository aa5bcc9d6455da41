"""Read the configuration of a head's decoder layers."""

from __future__ import annotations

from typing import Any

from transformers import AutoConfig, PretrainedConfig

MODEL_TYPES = ("llama", "qwen3")


def layer_config(settings: dict[str, Any]) -> PretrainedConfig:
    """Build the configuration of a head's decoder layers from a JSON object.

    Raises:
        ValueError: The model type is not one of `MODEL_TYPES`.
    """
    fields = dict(settings)
    model_type = fields.pop("model_type", "qwen3")
    if model_type not in MODEL_TYPES:
        raise ValueError(f"layers of type {model_type!r}; known are {', '.join(MODEL_TYPES)}")
    config = AutoConfig.for_model(model_type, **fields)
    config._attn_implementation = "sdpa"
    return config
