"""Read a model's configuration from the header of a GGUF file.

transformers ignores a few values in headers. `complete_config` adds them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers import AutoConfig

from paceline.model import gguf, gguf_directory

# Attributes of configurations, by their name in the header.
_VALUES = {
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
    "final_logit_softcapping": "final_logit_softcapping",
    "attention.shared_kv_layers": "num_kv_shared_layers",
    "embedding_length_per_layer_input": "hidden_size_per_layer_input",
}
# Configurations use one of these names for the number of experts.
_EXPERT_COUNTS = ("num_experts", "num_local_experts")
# Architectures and numbers of layers of Gemma 2 27B and Gemma 3 27B. Headers do not contain the
# scale of their attention scores, so llama.cpp recognises these models in the same way.
_SCALED_BY_MODEL_SIZE = {("gemma2", 46), ("gemma3", 62)}


def read_config(path: Path, metadata: Mapping[str, Any], folder: Path) -> Any:
    """Return a model's configuration, without the scaling of rotary frequencies.

    Args:
        path: GGUF file.
        metadata: Metadata in its header.
        folder: Folder for a temporary file.
    """
    copy = folder / path.name
    gguf_directory.copy_header(path, copy)
    config = AutoConfig.from_pretrained(str(folder), gguf_file=copy.name, local_files_only=True)
    copy.unlink()
    complete_config(config, metadata)
    if metadata["general.architecture"] == "gemma4":
        return _gemma4_config(config, gguf.architecture_values(metadata))
    return config


def _gemma4_config(config: Any, header: Mapping[str, Any]) -> Any:
    """Return a Gemma 4 configuration that includes the properties of each layer."""
    values = config.to_dict()
    del values["per_layer_config"]  # computed from the sizes below
    bases = {"sliding_attention": "rope.freq_base_swa", "full_attention": "rope.freq_base"}
    kinds = ["sliding_attention", "full_attention"]
    return type(config)(
        **values
        | {
            "head_dim": header["attention.key_length_swa"],
            "global_head_dim": header["attention.key_length"],
            "layer_types": [
                kinds[0 if slides else 1] for slides in header["attention.sliding_window_pattern"]
            ],
            "rope_parameters": {
                kind: values["rope_parameters"][kind] | {"rope_theta": header[bases[kind]]}
                for kind in kinds
            },
            "vocab_size_per_layer_input": config.vocab_size,
        }
    )


def complete_config(config: Any, metadata: Mapping[str, Any]) -> None:
    """Complete a configuration with header values that transformers does not read.

    Args:
        config: Configuration as transformers reads it from the header.
        metadata: Metadata in the header.
    Raises:
        UnsupportedContent: The file contains experts, but the configuration does not.
    """
    architecture = str(metadata["general.architecture"])
    header = gguf.architecture_values(metadata)
    for key, name in _VALUES.items():
        if key in header and hasattr(config, name):
            setattr(config, name, header[key])
    num_experts = header.get("expert_count", 0)
    if num_experts and num_experts not in [getattr(config, name, 0) for name in _EXPERT_COUNTS]:
        raise gguf.UnsupportedContent(
            f"{num_experts} experts in a model of type {config.model_type}"
        )
    parameters = getattr(config, "rope_parameters", None)
    if parameters and "rope_theta" in parameters and "rope.freq_base" in header:
        parameters["rope_theta"] = header["rope.freq_base"]
    if architecture == "qwen3" and "attention.key_length" in header:
        config.head_dim = header["attention.key_length"]
    if architecture == "phi3" and parameters:
        config.sliding_window = header.get("attention.sliding_window") or None
        size = config.hidden_size // config.num_attention_heads
        parameters["partial_rotary_factor"] = header.get("rope.dimension_count", size) / size
    if (architecture, config.num_hidden_layers) in _SCALED_BY_MODEL_SIZE:
        config.query_pre_attn_scalar = config.hidden_size // config.num_attention_heads
