"""Save small checkpoints, and compare quantised models with `generate`."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from paceline import LLM, SamplingParams
from paceline.errors import ConfigError

PROMPTS = [[5, 6, 7, 5, 6, 7, 5, 6], [9, 3] * 8, [4]]
SIZES = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}


def save_llama(folder: Path) -> Path:
    torch.manual_seed(0)
    ends = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    config = LlamaConfig(
        vocab_size=128,
        num_key_value_heads=2,
        initializer_range=0.25,
        max_position_embeddings=512,
        **SIZES,
        **ends,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def sums(model: Any) -> dict[str, str]:
    found = {}
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        parts = (
            [getattr(tensor, part) for part in tensor.__tensor_flatten__()[0]]
            if hasattr(tensor, "__tensor_flatten__")
            else [tensor]
        )
        flat = [
            part.dequantize()
            if hasattr(part, "dequantize") and type(part) is not type(tensor)
            else part
            for part in parts
        ]
        content = b"".join(
            part.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes() for part in flat
        )
        found[name] = hashlib.sha256(content).hexdigest()
    return found


def generated(model: Any, prompt: list[int]) -> list[int]:
    ids = model.generate(
        torch.tensor([prompt]),
        max_new_tokens=12,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
    )
    return list(ids[0, len(prompt) :].tolist())


def run_once(model: Any) -> None:
    """Run a forward pass, since some libraries repack their weights in the first one."""
    with torch.no_grad():
        model(torch.tensor([[1, 2]]))


def check_decoding(model: Any, runs_before: bool = True) -> None:
    """Check that outputs equal `generate` and the model stays unchanged.

    Batch invariance is refused for the model.
    """
    if runs_before:
        run_once(model)
        before = sums(model)
    llm = LLM(model, "prompt_lookup", max_batch=2)
    if not runs_before:
        before = sums(model)
    assert sums(model) == before
    with pytest.raises(ConfigError, match="batch_invariant: got True"):
        LLM(model, "none", batch_invariant=True)
    assert sums(model) == before
    outs = llm.generate(PROMPTS, SamplingParams(max_new_tokens=12, ignore_eos=True))
    assert not any(out.stats.batch_invariant for out in outs)
    assert [out.token_ids for out in outs] == [generated(model, prompt) for prompt in PROMPTS]


def check_approximate_decoding(model: Any) -> None:
    """Check that tokens are the most likely ones up to rounding."""
    run_once(model)
    before = sums(model)
    llm = LLM(model, "prompt_lookup", max_batch=2)
    outs = llm.generate(PROMPTS, SamplingParams(max_new_tokens=12, ignore_eos=True))
    assert sums(model) == before
    for prompt, out in zip(PROMPTS, outs, strict=True):
        with torch.no_grad():
            logits = model(torch.tensor([prompt + out.token_ids])).logits[0, len(prompt) - 1 : -1]
        chosen = logits.gather(1, torch.tensor(out.token_ids)[:, None])[:, 0]
        assert ((logits.amax(-1) - chosen) / logits.abs().max()).max() < 0.03
