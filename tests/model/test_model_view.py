"""Test views of a model: what they copy, and that later changes of the model take effect."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from paceline.backend.products import Products
from paceline.core.request import Request
from paceline.core.sampling_params import SamplingParams
from paceline.core.tree import EMPTY_TREE
from paceline.cpu import backend
from paceline.cpu.backend import CPU
from paceline.cpu.linear.dispatch import product as own_product
from paceline.model.cached_lm import CachedLM
from paceline.model.model_view import ModelView
from tests.support.models import make

IDS = torch.tensor([[3, 4, 5, 60, 7]])


class Adapter(nn.Module):
    """Scales the output of a module by a factor that can change at any time."""

    def __init__(self, base: nn.Module) -> None:
        super().__init__()
        self.base, self.scale, self.calls = base, 1.0, 0

    @property
    def factor(self) -> float:
        return self.scale

    def forward(self, rows: Tensor) -> Tensor:
        self.calls += 1
        out: Tensor = self.base(rows)
        return out * self.factor


@pytest.fixture
def model() -> Any:
    return copy.deepcopy(make("llama", "sdpa"))


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the ids of the weights that our kernel multiplies."""
    weights, product = list[int](), own_product

    def watched(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        weights.append(id(weight))
        return product(rows, weight, bias)

    monkeypatch.setattr(backend, "product", watched)
    return weights


def logits_of(model: Any) -> Tensor:
    with torch.inference_mode():
        logits: Tensor = model(IDS).logits
    return logits


def test_modules_with_our_products_are_copies_that_share_weights(model: Any) -> None:
    viewed = ModelView(model, Products.of_backend(model, CPU)).module
    theirs, ours = model.model.layers[0].mlp.up_proj, viewed.model.layers[0].mlp.up_proj
    assert ours is not theirs
    assert ours.weight is theirs.weight
    assert "forward" not in vars(theirs)
    assert viewed.model.layers[0].mlp.act_fn is model.model.layers[0].mlp.act_fn
    assert {id(one) for one in viewed.parameters()} == {id(one) for one in model.parameters()}


def test_hooks_added_later_are_called(model: Any) -> None:
    viewed, seen = ModelView(model, Products.of_backend(model, CPU)).module, list[tuple[int, ...]]()
    hook = model.lm_head.register_forward_pre_hook(lambda _, args: seen.append(args[0].shape))
    logits_of(viewed)
    hook.remove()
    logits_of(viewed)
    assert seen == [(1, 5, 64)]


def test_adapter_can_be_switched_in_an_existing_view(model: Any, calls: list[int]) -> None:
    products = Products.of_backend(model, CPU)
    view = ModelView(model, products)
    down = model.model.layers[1].mlp.down_proj
    adapter = model.model.layers[1].mlp.down_proj = Adapter(down)
    assert view.stale
    view = ModelView(model, products)
    assert not view.stale
    for scale in (8.0, -8.0):
        adapter.scale = scale
        expected = logits_of(model)
        calls.clear()
        assert torch.allclose(logits_of(view.module), expected, atol=1e-4)
        assert id(down.weight) in calls
    assert adapter.calls == 4
    assert isinstance(view.module.model.layers[1].mlp.down_proj, Adapter)
    model.model.layers[1].mlp.down_proj = down
    assert view.stale


def test_replaced_forward_method_takes_effect(model: Any, calls: list[int]) -> None:
    hooks = pytest.importorskip("accelerate.hooks")

    class Twice(hooks.ModelHook):  # type: ignore[misc, name-defined]
        def post_forward(self, module: nn.Module, output: Tensor) -> Tensor:
            return output * 2

    lm = CachedLM(model, products=Products.of_backend(model, CPU))
    down = model.model.layers[1].mlp.down_proj
    hooks.add_hook_to_module(down, Twice())
    assert lm.stale
    request = Request(IDS[0].tolist(), SamplingParams())
    lm.open(request)
    assert not lm.stale
    logits = lm.forward([request], [EMPTY_TREE])[0, 0]
    assert torch.allclose(logits, logits_of(model)[0, -1], atol=1e-4)
    assert id(down.weight) not in calls


def test_compiled_modules_run_uncompiled_with_our_products(model: Any, calls: list[int]) -> None:
    products, layer = Products.of_backend(model, CPU), model.model.layers[0]
    expected = logits_of(model)
    layer.mlp = torch.compile(layer.mlp, backend="eager")
    layer.self_attn.o_proj = torch.compile(layer.self_attn.o_proj, backend="eager")
    assert torch.allclose(logits_of(ModelView(model, products).module), expected, atol=1e-4)
    assert len(calls) == len(products.modules)
