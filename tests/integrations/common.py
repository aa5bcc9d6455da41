"""Shared tools for tests of Strategy: models, prompts and comparisons."""

from __future__ import annotations

import copy
import functools
import random
from typing import Any

import torch
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
)
from transformers.generation import (
    BaseStreamer,
)

from paceline.drafters import available
from paceline.integrations.transformers import Strategy

VOCAB = 256
DRAFTERS = ("none", "prompt_lookup:max_draft_tokens=6", "draft_model:max_draft_tokens=4")
EVERY_DRAFTER = (
    *DRAFTERS,
    *(
        name
        for name in available()  # a state head would have to be trained for the target
        if name not in ("none", "prompt_lookup", "draft_model", "state_head")
    ),
)
GREEDY: dict[str, Any] = {"do_sample": False}
PENALISED: dict[str, Any] = {
    "do_sample": False,
    "repetition_penalty": 1.3,
    "no_repeat_ngram_size": 3,
}
SAMPLED: dict[str, Any] = {
    "do_sample": True,
    "temperature": 0.6,
    "top_k": 20,
    "top_p": 0.9,
    "min_p": 0.02,
    "repetition_penalty": 1.05,
}
ALL_OUTPUTS: dict[str, Any] = {
    "return_dict_in_generate": True,
    "output_scores": True,
    "output_logits": True,
}
ENDS = [2, *range(40, 60)]


_SIZES = {
    "vocab_size": VOCAB, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 2048, "initializer_range": 0.25,
    "bos_token_id": 1, "eos_token_id": 2,
    "pad_token_id": 0,
}  # fmt: skip
_REACH = {"sliding_window": 8, "head_dim": 16}  # shorter than the prompts
_OPTIONS: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {"sliding_window": 8},
    "gemma2": {"query_pre_attn_scalar": 16, **_REACH},
    "gpt_oss": {"num_local_experts": 4, "num_experts_per_tok": 2, **_REACH},
    "falcon": {"alibi": True, "new_decoder_architecture": False, "multi_query": False},
}


def make_model(name: str, implementation: str = "eager", noise: float = 0.0, **changes: Any) -> Any:
    """Return a model with random weights; `noise` makes a draft model."""
    config = AutoConfig.for_model(name, **{**_SIZES, **_OPTIONS[name], **changes})
    torch.manual_seed(0)
    model = (
        AutoModelForCausalLM.from_config(config, attn_implementation=implementation).eval().float()
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += noise * torch.randn(parameter.shape)
    return model


cached_model = functools.cache(make_model)


def padded(rows: list[list[int]]) -> dict[str, Tensor]:
    width = max(map(len, rows))
    ids = [[0] * (width - len(row)) + row for row in rows]
    mask = [[0] * (width - len(row)) + [1] * len(row) for row in rows]
    return {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(mask)}


def random_ids(seed: int, count: int) -> list[int]:
    return [random.Random(100 * seed + index).randrange(3, VOCAB) for index in range(count)]


def with_and_without(
    model: Any, strategy: Any, inputs: dict[str, Any], seed: int = 0, **options: Any
) -> tuple[Any, Any]:
    """Return the results of transformers and of a Strategy.

    The random state afterwards must be the same.
    """
    options = {"pad_token_id": 0, "eos_token_id": None, "max_new_tokens": 24, **options}
    torch.manual_seed(seed)
    expected = model.generate(**copy.deepcopy(inputs), **options)
    next_draw = torch.rand(3)
    torch.manual_seed(seed)
    found = model.generate(**copy.deepcopy(inputs), **options, custom_generate=strategy)
    assert torch.equal(torch.rand(3), next_draw)
    return expected, found


def accepted(strategy: Strategy) -> int:
    return sum(row.accepted_tokens for row in strategy.stats)


class Recorder(BaseStreamer):  # type: ignore[misc]
    """Streamer that records all values; it raises once it has `fail_at` values."""

    def __init__(self, fail_at: int = 1 << 30) -> None:
        self.values: list[Tensor] = []
        self.ended = 0
        self._fail_at = fail_at

    def put(self, value: Tensor) -> None:
        if len(self.values) == self._fail_at:
            raise KeyboardInterrupt
        self.values.append(value)

    def end(self) -> None:
        self.ended += 1
