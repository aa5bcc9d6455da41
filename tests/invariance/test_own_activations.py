"""Test that activation functions in a module's own code do not depend on other rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from paceline import SamplingParams
from paceline.backend.activations import DTYPES, FUNCTION_NAMES, WholeVectors
from paceline.backend.own_code import InnerLinearOverride, own_code_overrides
from paceline.core.request import Request
from paceline.core.tree import EMPTY_TREE
from paceline.cpu.product_choice import everywhere
from paceline.invariance.invariance import resolve_batch_invariance
from paceline.model.cached_lm import CachedLM
from paceline.model.model_view import ModelView
from tests.support.models import make
from tests.support.recurrent_models import BRANCHING
from tests.support.tree_models import TREES

COUNT = 17
# Widths that are no multiples of a vector.
CHANGES: dict[str, dict[str, Any]] = {
    "lfm2": {"intermediate_size": 72, "block_auto_adjust_ff_dim": False},
    "gpt_oss": {"intermediate_size": 40},
    "qwen3_5_moe": {},
    "lfm2_moe": {"intermediate_size": 72},
    "lfm3": {"intermediate_size": 72},
    "olmo_hybrid": {},
    "qwen3_5": {},
    "qwen3_next": {},
}


@pytest.fixture
def threads() -> Iterator[Any]:
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def narrow(name: str) -> Any:
    model_type, options = {**TREES, **BRANCHING}[name]
    torch.manual_seed(0)
    config = CONFIG_MAPPING[model_type](**{**options, **CHANGES[name]})
    return AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()


def logits_of(lm: CachedLM, requests: list[Request]) -> Tensor:
    return lm.forward(requests, [EMPTY_TREE] * len(requests))[:, 0]


@pytest.mark.parametrize("name", CHANGES)
def test_other_rows_change_no_bit_of_the_logits(name: str) -> None:
    model = narrow(name)
    lm = CachedLM(model, batch_invariant=True, products=everywhere(model))
    texts = torch.randint(3, 97, (COUNT, 4), generator=torch.Generator().manual_seed(1)).tolist()
    requests = [Request(text[:3], SamplingParams()) for text in texts]
    for request, text in zip(requests, texts, strict=True):
        lm.open(request)
        lm.feed([request])
        request.token_ids.append(text[3])
    alone = torch.cat([logits_of(lm, [request]) for request in requests])
    for count in range(1, COUNT + 1):
        assert torch.equal(logits_of(lm, requests[:count]), alone[:count]), count


def last_logits(lm: CachedLM, text: list[int]) -> Tensor:
    """Return the logits after a text, whose tokens are processed in the model's prefill chunks."""
    request = Request(text[:-1], SamplingParams())
    lm.open(request)
    while request.cached < len(text) - 1:
        lm.feed([request])
    request.token_ids.append(text[-1])
    return logits_of(lm, [request])[0]


@torch.inference_mode()
def test_float32_gates_of_bfloat16_models_change_no_bit() -> None:
    """One row has 16 gates, fewer than torch computes at once."""
    model_type, options = BRANCHING["qwen3_5"]
    sizes = {"hidden_size": 256, "linear_num_value_heads": 16, "linear_num_key_heads": 16}
    kinds = [*["linear_attention"] * 5, "full_attention"]
    depth = {"num_hidden_layers": len(kinds), "layer_types": kinds, "initializer_range": 0.08}
    torch.manual_seed(0)
    config = CONFIG_MAPPING[model_type](**{**options, **sizes, **depth})
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
    for layer in model.model.layers[:-1]:
        layer.linear_attn.A_log.data.fill_(-1.0)  # slow decay keeps the differences
    assert names_in(model) == {"Qwen3_5GatedDeltaNet"}
    products = everywhere(model)
    by_token, at_once = (
        CachedLM(model, chunk, batch_invariant=True, products=products) for chunk in (1, 64)
    )
    texts = torch.randint(3, 97, (12, 40), generator=torch.Generator().manual_seed(1)).tolist()
    for text in texts:
        assert torch.equal(last_logits(by_token, text), last_logits(at_once, text))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", sorted(FUNCTION_NAMES))
def test_threads_and_ends_change_no_bit(threads: Any, name: str, dtype: torch.dtype) -> None:
    """Each thread computes a share of the elements, and the shares end anywhere."""
    threads(3)
    function = getattr(functional, name)
    inputs = torch.randn(131, 521, generator=torch.Generator().manual_seed(1), dtype=dtype)
    with WholeVectors():
        together = function(inputs)
        for row in range(len(inputs)):
            assert torch.equal(function(inputs[row]), together[row])
    torch.testing.assert_close(together, function(inputs))


def test_arguments_of_functions_are_kept() -> None:
    inputs = torch.randn(3, 7)
    with WholeVectors():
        assert torch.equal(functional.gelu(inputs, approximate="tanh"), gelu_of(inputs))
        changed = inputs.clone()
        assert functional.silu(changed, inplace=True) is changed
        assert functional.silu(inputs.bfloat16()).dtype == torch.bfloat16
    torch.testing.assert_close(changed, functional.silu(inputs))


def gelu_of(inputs: Tensor) -> Tensor:
    padded = functional.pad(inputs.flatten(), (0, 64 - inputs.numel()))
    return functional.gelu(padded, approximate="tanh")[: inputs.numel()].view(inputs.shape)


def names_in(model: Any) -> set[str]:
    return {type(module).__name__ for module in own_code_overrides(model)}


def test_modules_are_found_by_the_functions_that_they_name() -> None:
    assert not own_code_overrides(make("llama"))
    assert names_in(make("lfm2")) == {"Lfm2MLP"}
    assert names_in(make("gpt_oss")) == {"GptOssExperts"}
    assert names_in(make("mamba2")) == {"MambaRMSNormGated"}
    assert names_in(make("qwen3_5")) == {"Qwen3_5Attention", "Qwen3_5GatedDeltaNet"}
    assert not own_code_overrides(narrow("lfm2").bfloat16())


def test_any_number_of_rows_passes_the_self_test() -> None:
    invariance = resolve_batch_invariance(make("qwen3_5"), True)
    assert invariance.report is not None
    assert (invariance.report.least, invariance.report.most) == (1, 1024)


@torch.inference_mode()
def test_products_inside_own_code_are_computed_without_its_mode() -> None:
    model = make("lfm2")
    products = everywhere(model)
    view: Any = ModelView(model, products).module
    layer = view.model.layers[0].feed_forward
    assert isinstance(vars(layer.w1)["forward"], InnerLinearOverride)
    rows = torch.randn(3, 64, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(layer(rows), model.model.layers[0].feed_forward(rows))
