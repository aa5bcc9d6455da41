"""Read a model's configuration from the header of a GGUF file.

transformers ignores a few values in headers. `complete_config` adds them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers import AutoConfig

from paceline.model import gguf_directory

# Attributes of configurations, by their name in the header.
_SIZES = {
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
}
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
    return config


def complete_config(config: Any, metadata: Mapping[str, Any]) -> None:
    """Set the attributes of a configuration that transformers does not read.

    Args:
        config: Configuration as transformers reads it from the header.
        metadata: Metadata in the header.
    """
    architecture = metadata["general.architecture"]
    for key, name in _SIZES.items():
        size = metadata.get(f"{architecture}.{key}")
        if size is not None and hasattr(config, name):
            setattr(config, name, size)
    if (architecture, config.num_hidden_layers) in _SCALED_BY_MODEL_SIZE:
        config.query_pre_attn_scalar = config.hidden_size // config.num_attention_heads
