"""Measure the time of verification passes of recurrent models on a CPU, relative to one token.

    python scripts/recurrence_times.py docs/results/recurrence-times.json

The models have 8 layers with the widths of a model with 0.8 billion parameters, and random weights
in bfloat16. One layer in four has full attention. The script measures each model with paceline's
recurrences, and with the forward methods of transformers. A pass includes its commit, in which no
draft token is accepted. Times are CPU times of the process, the minimum of several passes that
alternate.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache, PreTrainedModel

from paceline.core.request import Request
from paceline.core.sampling_params import SamplingParams
from paceline.core.tree import EMPTY_TREE, DraftTree
from paceline.model.cached_lm import CachedLM
from paceline.model.forward_arguments import cache_argument
from paceline.util.machine import processor

NUM_TOKENS = (1, 2, 4, 8, 16)
TEXT_TOKENS = 64
REPEATS = 7
_LINEAR = (["linear_attention"] * 3 + ["full_attention"]) * 2
_WIDTHS: dict[str, Any] = {
    "hidden_size": 1024,
    "intermediate_size": 3584,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 32000,
}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "Gated DeltaNet": (
        "qwen3_5_text",
        {
            "head_dim": 256,
            "linear_num_value_heads": 16,
            "linear_num_key_heads": 16,
            "linear_key_head_dim": 128,
            "linear_value_head_dim": 128,
            "layer_types": _LINEAR,
        },
    ),
    "Mamba-2": (
        "granitemoehybrid",
        {
            "num_local_experts": 0,
            "shared_intermediate_size": 3584,
            "mamba_n_heads": 32,
            "mamba_d_head": 64,
            "mamba_d_state": 128,
            "mamba_chunk_size": 256,
            "layer_types": _LINEAR,
        },
    ),
    "LFM2": (
        "lfm2",
        {"block_multiple_of": 256, "layer_types": (["conv"] * 3 + ["full_attention"]) * 2},
    ),
}


def build(model_type: str, changes: dict[str, Any]) -> PreTrainedModel:
    """Return a model with random weights in bfloat16."""
    config = AutoConfig.for_model(model_type, **_WIDTHS, **changes)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    return model.eval()


def paceline_times(model: PreTrainedModel) -> dict[int, float]:
    """Return the minimum CPU seconds of a pass and its commit, by number of tokens."""
    lm = CachedLM(model)
    request = Request([3 + index % 90 for index in range(TEXT_TOKENS)], SamplingParams())
    lm.open(request)
    trees = {
        count: DraftTree.chain([5] * (count - 1)) if count > 1 else EMPTY_TREE
        for count in NUM_TOKENS
    }
    least = dict.fromkeys(NUM_TOKENS, float("inf"))
    lm.forward([request], [EMPTY_TREE])
    lm.commit([[]])
    for _ in range(REPEATS):
        for count, tree in trees.items():
            request.token_ids.append(7)
            start = time.process_time()
            lm.forward([request], [tree])
            lm.commit([[]])
            least[count] = min(least[count], time.process_time() - start)
    return least


def upstream_times(model: PreTrainedModel) -> dict[int, float]:
    """Return the minimum CPU seconds of a forward pass of transformers, by number of tokens."""
    least = dict.fromkeys(NUM_TOKENS, float("inf"))
    cache = DynamicCache(config=model.config)
    with torch.inference_mode():
        options = {cache_argument(model): cache, "use_cache": True}
        model(input_ids=torch.full((1, TEXT_TOKENS), 7), **options)
        for _ in range(REPEATS):
            for count in NUM_TOKENS:
                token_ids = torch.full((1, count), 7)
                start = time.process_time()
                model(input_ids=token_ids, **options)
                least[count] = min(least[count], time.process_time() - start)
    return least


def main(path: Path) -> None:
    """Measure all models and write the results.

    Args:
        path: JSON file to write.
    """
    torch.set_num_threads(1)
    torch.manual_seed(0)
    results: dict[str, Any] = {
        "kind": "recurrence times (1)",
        "processor": processor(),
        "threads": 1,
        "dtype": "bfloat16",
    }
    for name, (model_type, changes) in MODELS.items():
        model = build(model_type, changes)
        for way, times in (("paceline", paceline_times), ("transformers", upstream_times)):
            least = times(model)
            results.setdefault("models", {}).setdefault(name, {})[way] = {
                "one_token_ms": round(least[1] * 1e3, 1),
                "relative": {
                    str(count): round(seconds / least[1], 2) for count, seconds in least.items()
                },
            }
            print(name, way, results["models"][name][way], flush=True)
    path.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
