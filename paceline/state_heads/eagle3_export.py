"""Write an EAGLE-3 head in the format of the speculators library, for vLLM."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import PretrainedConfig

from paceline.state_heads.files import CONFIG, ONE_FILE


@dataclass(frozen=True, slots=True)
class Eagle3Card:
    """Describes an EAGLE-3 head for its `config.json`.

    Attributes:
        layers: Configuration of the head's decoder layers.
        target_layers: Indices of the target layers whose inputs the head reads.
        target: Directory or hub id of the target.
        architectures: Model classes that the target's configuration lists.
        num_draft_tokens: Recommended number of draft tokens per step.
    """

    layers: PretrainedConfig
    target_layers: tuple[int, ...]
    target: str
    architectures: tuple[str, ...]
    num_draft_tokens: int

    def as_config(self, draft_vocab_size: int) -> dict[str, Any]:
        """Return the content of `config.json`, given the size of the draft vocabulary."""
        return {
            "architectures": ["Eagle3Speculator"],
            "speculators_model_type": "eagle3",
            "speculators_config": {
                "algorithm": "eagle3",
                "default_proposal_method": "greedy",
                "proposal_methods": [
                    {"proposal_type": "greedy", "speculative_tokens": self.num_draft_tokens}
                ],
                "verifier": {
                    "name_or_path": self.target,
                    "architectures": list(self.architectures),
                },
            },
            "draft_vocab_size": draft_vocab_size,
            "norm_before_residual": True,
            "eagle_aux_hidden_state_layer_ids": list(self.target_layers),
            "transformer_layer_config": _json_values(self.layers),
            "tie_word_embeddings": False,
            "dtype": "bfloat16",
        }


def write_eagle3(
    folder: Path, card: Eagle3Card, weights: dict[str, Tensor], token_ids: Tensor
) -> None:
    """Write a head's configuration and its weights, which are stored in bfloat16.

    Args:
        folder: Existing folder that receives the files.
        card: Description of the head.
        weights: Weights by their names in the module, with a copy of the target's embedding.
        token_ids: Token ids of the draft vocabulary, in ascending order, [draft vocabulary].
    """
    vocab_size = int(card.layers.vocab_size)
    tensors = {
        name: weight.detach().to("cpu", torch.bfloat16).contiguous()
        for name, weight in weights.items()
    }
    if len(token_ids) < vocab_size:
        is_kept = torch.zeros(vocab_size, dtype=torch.bool)
        is_kept[token_ids] = True
        tensors |= {"d2t": token_ids - torch.arange(len(token_ids)), "t2d": is_kept}
    save_file(tensors, folder / ONE_FILE, metadata={"format": "pt"})
    (folder / CONFIG).write_text(json.dumps(card.as_config(len(token_ids)), indent=2) + "\n")


def _json_values(config: PretrainedConfig) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(config.to_json_string(use_diff=True))
    return {name: value for name, value in values.items() if name != "transformers_version"}
