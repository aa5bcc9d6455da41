"""Test that enlarged models compute the same as the original models."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from paceline.bench import BenchConfig, CostScale, enlarge
from paceline.errors import ConfigError, UnsupportedModelError
from tests.support.models import make

WAYS = list(itertools.product((4, 2), (True, False), (False, True)))


def tiny_llama(heads: int = 4, tied: bool = True, biased: bool = False) -> Any:
    """Return a model of hidden size 64, 3 layers, 4 heads of 16 and context 256."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=97, hidden_size=64, intermediate_size=100, num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=heads, max_position_embeddings=256, initializer_range=0.2,
        tie_word_embeddings=tied,
        attention_bias=biased, mlp_bias=biased, rms_norm_eps=1e-3, eos_token_id=2,
        bos_token_id=None, pad_token_id=0,
        rope_parameters={"rope_theta": 5000.0, "rope_type": "default"},
    )  # fmt: skip
    model: Any = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name or name.endswith("bias"):
                parameter += torch.randn_like(parameter) * 0.1
    model.generation_config.eos_token_id = [2, 5]
    return model


@pytest.mark.parametrize(("heads", "tied", "biased"), WAYS)
@pytest.mark.parametrize("size", [(256, 7), (96, 3), (64, 3)])
def test_enlarged_model_computes_the_same(
    heads: int, tied: bool, biased: bool, size: tuple[int, int]
) -> None:
    model = tiny_llama(heads, tied, biased)
    larger = enlarge(model, *size)
    ids = torch.randint(3, 97, (2, 40), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        want, got = model(ids).logits, larger(ids).logits
    assert (want - got).abs().max() < 1e-4 * want.abs().max()
    run = {"max_new_tokens": 24, "do_sample": False, "attention_mask": torch.ones_like(ids)}
    assert torch.equal(model.generate(ids, **run), larger.generate(ids, **run))


def test_enlarged_models_have_the_requested_sizes() -> None:
    model = tiny_llama(heads=2).to(torch.bfloat16)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    larger = enlarge(model, 256, 5)
    assert torch.equal(torch.rand(1), expected), "the random state of the caller stays"
    config = larger.config
    assert (config.hidden_size, config.num_hidden_layers, config.head_dim) == (256, 5, 16)
    assert (config.num_attention_heads, config.num_key_value_heads, config.intermediate_size) == (
        16,
        8,
        400,
    )
    assert larger.dtype == torch.bfloat16
    assert larger.generation_config.eos_token_id == [2, 5]
    assert config.rope_parameters["rope_theta"] == 5000.0
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(bool(parameter.isfinite().all()) for parameter in larger.parameters())


def test_added_weights_are_random_where_they_cost_time() -> None:
    model = tiny_llama()
    larger = enlarge(model, 128, 6)
    added = [
        index
        for index in range(6)
        if not bool(larger.model.layers[index].mlp.down_proj.weight.any())
    ]
    assert added == [1, 3, 5]
    for layer in larger.model.layers:
        for part in (
            layer.self_attn.q_proj,
            layer.self_attn.v_proj,
            layer.mlp.gate_proj,
            layer.mlp.up_proj,
        ):
            assert int((part.weight == 0).sum()) < 10
    assert torch.equal(
        enlarge(model, 128, 6).model.layers[1].mlp.up_proj.weight,
        larger.model.layers[1].mlp.up_proj.weight,
    )


@pytest.mark.parametrize("spec", ["", "1024", "x12", "1024x", "1024*12", "-64x3", "64x3x3"])
def test_a_scale_in_another_form_is_refused(spec: str) -> None:
    with pytest.raises(ConfigError, match="WIDTHxLAYERS"):
        CostScale.parse(spec)
    with pytest.raises(ConfigError, match="WIDTHxLAYERS"):
        BenchConfig(cost_scale=spec)


@pytest.mark.parametrize(
    ("size", "message"),
    [
        ((32, 3), "smaller than the model, which is 64x3"),
        ((64, 2), "smaller"),
        ((72, 3), "steps of 16 .* Use 64 or 80"),
    ],
)
def test_sizes_out_of_reach_are_refused(size: tuple[int, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        enlarge(tiny_llama(), *size)


def test_another_architecture_is_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="Llama architecture"):
        enlarge(make("qwen3"), 128, 4)
