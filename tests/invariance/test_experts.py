"""Check that a token's bits do not depend on other tokens of the same experts."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, Qwen2MoeConfig

from paceline import LLM, SamplingParams
from paceline.backend.experts import ExpertsOverride, routing_overrides
from paceline.backend.product_calls import DenseExpertsOverride, RouterOverride
from paceline.backend.products import Products
from paceline.cpu import expert_times, product_choice
from paceline.cpu.backend import CPU
from paceline.cpu.product_choice import everywhere, fastest, trial
from paceline.errors import ConfigError
from paceline.invariance.invariance import resolve_batch_invariance
from paceline.model.model_view import ModelView
from tests.support.models import EAGER_ONLY, make
from tests.support.shared import Pair

SHAPED = (
    "mixtral",
    "qwen3_moe",
    "olmoe",
    "granitemoe",
    "deepseek_v3",
    "gpt_oss",
    "llama4",
    "shared",
)


def mixture(name: str, dtype: torch.dtype = torch.float32) -> Any:
    """Return a tiny mixture of experts; "shared" has a gate with a single output."""
    if name != "shared":
        return copy.deepcopy(make(name, "eager" if name in EAGER_ONLY else "sdpa")).to(dtype)
    torch.manual_seed(0)
    config = Qwen2MoeConfig(
        vocab_size=97,
        hidden_size=64,
        intermediate_size=96,
        moe_intermediate_size=32,
        shared_expert_intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_experts=4,
        num_experts_per_tok=2,
        initializer_range=0.25,
    )
    return AutoModelForCausalLM.from_config(config, dtype=dtype).eval()


def experts_in(model: Any) -> Any:
    overrides = routing_overrides(model, CPU)
    return next(module for module, kind in overrides.items() if kind is ExpertsOverride)


@pytest.mark.parametrize("name", SHAPED)
@torch.inference_mode()
def test_a_view_computes_what_the_model_does(name: str) -> None:
    model = mixture(name)
    products = everywhere(model)
    assert products is not None
    experts = DenseExpertsOverride if name == "llama4" else ExpertsOverride
    assert {experts, RouterOverride} <= set(products.routing.values())
    token_ids = torch.arange(13)[None]
    expected = model(input_ids=token_ids, use_cache=False).logits
    logits = ModelView(model, products).module(input_ids=token_ids, use_cache=False).logits
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["mixtral", "gpt_oss"])
@torch.inference_mode()
def test_rows_of_routed_experts_do_not_depend_on_each_other(name: str, dtype: torch.dtype) -> None:
    model = mixture(name, dtype)
    products = everywhere(model)
    assert products is not None
    call = ExpertsOverride(experts_in(model), products)
    rows = torch.randn(40, 64, generator=torch.Generator().manual_seed(1)).to(dtype)
    weights = torch.full((40, 2), 0.5, dtype=dtype)
    row = call(rows[7:8], torch.tensor([[1, 3]]), weights[7:8])
    for others in ([1, 3], [3, 1], [0, 2], [1, 0]):
        choices = torch.tensor([others]).repeat(40, 1)
        choices[7] = torch.tensor([1, 3])
        assert torch.equal(call(rows, choices, weights)[7], row[0])


@torch.inference_mode()
def test_rows_of_shared_experts_do_not_depend_on_each_other() -> None:
    model = mixture("llama4", torch.bfloat16)
    products = everywhere(model)
    assert products is not None
    module = next(m for m, kind in products.routing.items() if kind is DenseExpertsOverride)
    call = DenseExpertsOverride(module, products)
    rows = torch.randn(2, 40, 64, generator=torch.Generator().manual_seed(1)).bfloat16()
    together = call(rows.flatten(0, 1)).view(2, 40, 64)
    assert torch.equal(call(rows[:, 7:8].flatten(0, 1)), together[:, 7])


@torch.inference_mode()
def test_biases_and_experts_without_gates() -> None:
    """Compare with a sum over the experts of each row."""

    class Experts(nn.Module):
        has_gate, has_post_expert_norm, num_experts = False, False, 3

        def __init__(self) -> None:
            super().__init__()
            self.up_proj = nn.Parameter(torch.randn(3, 24, 16))
            self.up_proj_bias = nn.Parameter(torch.randn(3, 24))
            self.down_proj = nn.Parameter(torch.randn(3, 16, 24))
            self.act_fn = nn.ReLU()

    torch.manual_seed(0)
    experts = Experts()
    rows, choices = torch.randn(5, 16), torch.tensor([[0, 2], [1, 0], [2, 1], [0, 1], [2, 0]])
    weights = torch.rand(5, 2)
    expected = torch.stack(
        [
            sum(
                weight
                * (
                    experts.down_proj[expert]
                    @ torch.relu(experts.up_proj[expert] @ row + experts.up_proj_bias[expert])
                )
                for expert, weight in zip(chosen, row_weights, strict=True)
            )
            for row, chosen, row_weights in zip(rows, choices, weights, strict=True)
        ]
    )
    outputs = ExpertsOverride(experts, Products(backend=CPU))(rows, choices, weights)
    torch.testing.assert_close(outputs, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["mixtral", "gpt_oss", "shared"])
@pytest.mark.parametrize("spec", ["auto", "lookahead"])
def test_drafts_and_batches_change_no_bit(pair: Pair, name: str, spec: str) -> None:
    model = mixture(name, torch.bfloat16)
    params = SamplingParams(max_new_tokens=16, ignore_eos=True)
    prompts = [[token % 97 for token in prompt][:40] for prompt in pair.prompts[:3]]
    plain = LLM(model, "none", batch_invariant=True)
    expected = [plain.generate([prompt], params)[0].token_ids for prompt in prompts]
    outs = LLM(model, spec, batch_invariant=True, max_batch=3).generate(prompts, params)
    assert [out.token_ids for out in outs] == expected
    assert all(out.stats.batch_invariant for out in outs)


def test_a_mixture_whose_rows_depend_on_one_another_is_refused() -> None:
    class Uneven(nn.Module):
        """Product whose rounding depends on the number of rows, as in a grouped product."""

        def forward(self, rows: Tensor) -> Tensor:
            return rows * (1 + 0.01 * (len(rows) % 3))

    model = mixture("mixtral")
    for layer in model.model.layers:
        layer.mlp.experts.act_fn = Uneven()
    with pytest.raises(ConfigError, match=r"give identical bits.*mlp\.experts"):
        resolve_batch_invariance(model, True)


def test_small_mixtures_are_left_alone_by_default() -> None:
    result = resolve_batch_invariance(mixture("mixtral"), "auto")
    assert not result.on
    assert "is a mixture of 4 experts (num_experts), and 'auto' tries" in result.reason


def test_experts_of_odd_sizes_are_refused() -> None:
    config = copy.deepcopy(make("mixtral").config)
    config.intermediate_size = 44
    model = AutoModelForCausalLM.from_config(config).eval()
    with pytest.raises(
        ConfigError,
        match=r"got True; MixtralForCausalLM is a mixture of \d experts.*one expert or token",
    ):
        resolve_batch_invariance(model, True)
    assert "mixture of" in resolve_batch_invariance(model, "auto").reason


def test_times_of_experts_count_for_the_cost() -> None:
    times = trial(mixture("mixtral"))
    assert len(times.our_experts) == len(times.torch_experts) == len(times.ours)
    assert min(times.our_experts + times.torch_experts) > 0


def test_experts_are_searched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model, searches = mixture("mixtral"), []

    def search(*arguments: Any) -> Any:
        searches.append(arguments)
        return routing_overrides(*arguments)

    monkeypatch.setattr(expert_times, "routing_overrides", search)
    monkeypatch.setattr(product_choice, "routing_overrides", search)
    monkeypatch.setattr(product_choice, "MIN_TIMED_WEIGHTS", 1)
    fastest(model)
    assert len(searches) == 1
