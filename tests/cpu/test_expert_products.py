"""Test that products with all experts equal one product per expert."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

pytest.importorskip("gguf")

from paceline.backend.packed_experts import PackedExperts
from paceline.cpu.backend import CPU
from paceline.cpu.expert_products import CpuExpertProducts
from paceline.cpu.thread_team import TEAM
from tests.support.packed import packed_weight

EXPERTS, INNER = 6, 256
COUNTS = [3, 0, 1, 0, 17, 2]


def plain(dtype: torch.dtype, outer: int = 40) -> Tensor:
    """Return random weights of all experts."""
    return torch.randn(EXPERTS, outer, INNER, generator=torch.Generator().manual_seed(1)).to(dtype)


def packed(*kinds: str) -> PackedExperts:
    """Return random packed weights, with one part for each format."""
    return PackedExperts([packed_weight(kind, EXPERTS * 48, INNER)[0] for kind in kinds], EXPERTS)


WEIGHTS: dict[str, Callable[[], Tensor]] = {
    "bfloat16": lambda: plain(torch.bfloat16),
    "bfloat16 in tasks": lambda: plain(torch.bfloat16, 96),
    "float32": lambda: plain(torch.float32),
    "Q4_K": lambda: packed("Q4_K"),
    "Q4_1 and Q6_K": lambda: packed("Q4_1", "Q6_K"),
    "F16 and Q8_0": lambda: packed("F16", "Q8_0"),
}


def one_by_one(rows: Tensor, weights: Tensor, biases: Tensor | None) -> Tensor:
    """Return the products, with one product per expert."""
    products = []
    for expert, part in enumerate(torch.split(rows, COUNTS)):
        if not len(part):
            continue
        if isinstance(weights, PackedExperts):
            products.append(weights.multiply_rows(part, expert, CPU.linear))
        else:
            bias = None if biases is None else biases[expert]
            products.append(CPU.linear(part, weights[expert], bias))
    return torch.cat(products)


@pytest.mark.parametrize("name", WEIGHTS)
@pytest.mark.parametrize("helpers", [None, 0, 1])
@torch.inference_mode()
def test_products_have_the_bits_of_one_product_per_expert(name: str, helpers: int | None) -> None:
    weights = WEIGHTS[name]()
    rows = torch.randn(sum(COUNTS), INNER).to(weights.dtype)
    products = CpuExpertProducts.of(weights)
    assert products is not None
    with CPU.thread_team(helpers):
        found = products.multiply(rows, COUNTS, None)
    assert torch.equal(found, one_by_one(rows, weights, None))


def test_biases_are_added() -> None:
    weights, biases = plain(torch.bfloat16), torch.randn(EXPERTS, 40).bfloat16()
    rows = torch.randn(sum(COUNTS), INNER).bfloat16()
    products = CpuExpertProducts.of(weights)
    assert products is not None
    assert torch.equal(products.multiply(rows, COUNTS, biases), one_by_one(rows, weights, biases))


def test_weights_that_moved_are_not_multiplied() -> None:
    parameter = torch.nn.Parameter(plain(torch.bfloat16), requires_grad=False)
    products = CpuExpertProducts.of(parameter)
    assert products is not None
    with TEAM.running(0):
        assert products.can_run()
        assert products.reads(parameter)
        assert not products.reads(plain(torch.bfloat16))
        parameter.data = plain(torch.bfloat16)
        assert not products.reads(parameter)


@pytest.mark.parametrize(
    "weights",
    [
        plain(torch.float16),
        plain(torch.bfloat16, 12),
        plain(torch.bfloat16).transpose(1, 2),
    ],
)
def test_unsupported_weights_are_left_to_one_product_per_expert(weights: Tensor) -> None:
    assert CpuExpertProducts.of(weights) is None
