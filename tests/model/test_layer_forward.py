"""Test decoder layers that run in one compiled call: same bits as the modules, or the modules."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from paceline import SamplingParams
from paceline.backend.products import Products
from paceline.core.request import Request
from paceline.core.tree import DraftTree
from paceline.cpu.backend import CPU
from paceline.model.cached_lm import CachedLM
from paceline.model.layer_forward import LayerForward
from paceline.model.layer_stack import LayerStack
from tests.support.attention import random_parents
from tests.support.models import make

KINDS = ["llama", "mistral", "qwen2", "qwen3", "qwen3_moe", "mixtral"]


def target(kind: str, change: Any = None) -> CachedLM:
    """Return a tiny bfloat16 model with the products of the CPU backend."""
    model = copy.deepcopy(make(kind, "sdpa")).to(torch.bfloat16)
    noise = torch.Generator().manual_seed(0)
    for name, weight in model.named_parameters():
        if name.endswith("norm.weight"):
            weight.data += 0.2 * torch.randn(weight.shape, generator=noise).bfloat16()
    if change is not None:
        change(model)
    return CachedLM(model, batch_invariant=True, products=Products.of_backend(model, CPU))


def calls_of(lm: CachedLM) -> list[LayerForward]:
    modules = lm._runner.view.module.modules()
    return [own for module in modules if type(own := vars(module).get("forward")) is LayerForward]


def logits(lm: CachedLM) -> list[Tensor]:
    """Return the logits of prompts of several lengths, then of steps with and without trees."""
    chance, rows = np.random.default_rng(0), []
    lm.reserve(3, 192)
    prompts = [chance.integers(3, 90, length).tolist() for length in (21, 5, 140)]
    requests = [Request(prompt, SamplingParams()) for prompt in prompts]
    for request in requests:
        lm.open(request)
        rows.append(lm.feed([request]))
    for group, nodes in ((requests, 5), (requests[:1], 9), (requests, 0), (requests[:1], 0)):
        for request in group:
            request.token_ids.append(int(chance.integers(3, 90)))
        trees = [
            DraftTree(chance.integers(3, 90, nodes).tolist(), random_parents(chance, nodes))
            for _ in group
        ]
        rows.append(lm.forward(group, trees))
        lm.commit([()] * len(group))
    return rows


def use_modules(lm: CachedLM) -> CachedLM:
    for own in calls_of(lm):
        own.calls.is_usable = False
    return lm


@pytest.mark.parametrize("kind", KINDS)
def test_compiled_call_has_the_bits_of_the_modules(kind: str) -> None:
    lm, modules = target(kind), use_modules(target(kind))
    assert len(calls_of(lm)) == lm.architecture.layers
    for first, second in zip(logits(lm), logits(modules), strict=True):
        assert torch.equal(first, second)
    assert all(own.calls.is_usable and own.is_checked for own in calls_of(lm))


def test_threads_share_the_work_of_a_layer() -> None:
    lm, modules = target("llama"), use_modules(target("llama"))
    torch.set_num_threads(2)
    try:
        results = zip(logits(lm), logits(modules), strict=True)
        assert all(torch.equal(first, second) for first, second in results)
    finally:
        torch.set_num_threads(1)
    assert all(own.is_checked for own in calls_of(lm))


class Softmax(nn.Module):
    """Activation in which each result depends on other numbers of the row."""

    def forward(self, rows: Tensor) -> Tensor:
        return rows.softmax(-1)


def test_layers_with_other_steps_run_their_modules() -> None:
    def change(model: Any) -> None:
        model.model.layers[1].mlp.act_fn = Softmax()

    lm, modules = target("llama", change), use_modules(target("llama", change))
    for first, second in zip(logits(lm), logits(modules), strict=True):
        assert torch.equal(first, second)
    assert not any(own.calls.is_usable for own in calls_of(lm))


def test_hooks_and_replaced_weights_take_effect() -> None:
    lm = target("llama")
    layer, seen = lm.model.model.layers[0], []
    logits(lm)
    hook = layer.self_attn.o_proj.register_forward_hook(lambda *_: seen.append(1))
    logits(lm)
    hook.remove()
    count = len(seen)
    assert count == len(logits(lm)) == len(seen)
    layer.mlp.up_proj.weight = nn.Parameter(layer.mlp.up_proj.weight * 2)
    modules = use_modules(target("llama"))
    modules.model.model.layers[0].mlp.up_proj.weight.data *= 2
    for first, second in zip(logits(lm), logits(modules), strict=True):
        assert torch.equal(first, second)


def test_a_hook_of_a_layer_sees_its_output() -> None:
    lm, seen = target("llama"), []
    layers = lm.model.model.layers
    logits(lm)
    hook = layers[1].register_forward_hook(lambda _, __, out: seen.append(out.clone()))
    expected = logits(lm)
    hook.remove()
    assert len(seen) == len(expected)
    for first, second in zip(logits(lm), expected, strict=True):
        assert torch.equal(first, second)


def test_all_layers_run_in_one_call_unless_their_masks_differ() -> None:
    stack = target("llama")._runner.view.module.model.layers
    assert type(stack) is LayerStack
    assert len(stack[:]) == 1
    assert [*stack[:1], *stack[1:]] == [*stack] == [stack[0], *list(stack)[1:]]

    def change(model: Any) -> None:
        model.config.layer_types = ["full_attention", "sliding_attention"]

    assert type(target("qwen2", change)._runner.view.module.model.layers) is nn.ModuleList


def test_float32_runs_the_modules() -> None:
    model = copy.deepcopy(make("llama", "sdpa"))
    lm = CachedLM(model, batch_invariant=True, products=Products.of_backend(model, CPU))
    assert not calls_of(lm)


def test_layers_with_a_replaced_feed_forward_part_run_their_modules() -> None:
    class Doubled(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, hidden: Tensor) -> Tensor:
            return 2 * self.inner(hidden)  # type: ignore[no-any-return]

    def replace(model: Any) -> None:
        model.model.layers[1].mlp = Doubled(model.model.layers[1].mlp)

    lm = target("llama", replace)
    assert not calls_of(lm)
    assert not torch.equal(logits(lm)[0], logits(target("llama"))[0])
