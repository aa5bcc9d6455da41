"""Test models whose attention derives keys or values from the cached ones."""

from __future__ import annotations

import torch
from transformers import AutoModelForCausalLM, DiffLlamaConfig

from paceline import LLM, SamplingParams


def test_slots_of_differential_attention_have_equal_lengths() -> None:
    """The model splits its values, so the kernel cannot read slots of other lengths."""
    torch.manual_seed(0)
    config = DiffLlamaConfig(
        vocab_size=97,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.25,
        max_position_embeddings=512,
    )
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
    params = SamplingParams(max_new_tokens=16, ignore_eos=True)
    prompts = [[5, 6, 7] * 5, [9, 3] * 20, [4]]
    plain = LLM(model, "none", batch_invariant=True)
    expected = [plain.generate([prompt], params)[0].token_ids for prompt in prompts]
    outs = LLM(model, "auto", batch_invariant=True, max_batch=3).generate(prompts, params)
    assert [out.token_ids for out in outs] == expected
