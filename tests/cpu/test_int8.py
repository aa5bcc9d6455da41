"""Check int8 products: formula, independence of rows, use in drafts only."""

from __future__ import annotations

import copy

import pytest
import torch

from paceline import demo
from paceline.backend.products import Products
from paceline.backend.settings import MAX_ROWS
from paceline.cpu import amx, avx512_dot, backend
from paceline.cpu.backend import CPU, CpuBackend, draft_products
from paceline.cpu.linear import dispatch
from paceline.cpu.linear.int8 import Int8Weight, suits
from paceline.cpu.product_choice import everywhere, fastest
from paceline.invariance.invariance import resolve_batch_invariance
from paceline.model.loading import draft_lm, load_draft
from tests.support.models import make

needs_int8 = pytest.mark.skipif(
    not avx512_dot.available(avx512_dot.INT8), reason="no AVX512_VNNI here"
)


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    noise = torch.Generator().manual_seed(seed)
    return (
        torch.randn(shape, generator=noise) * torch.randn(1, shape[-1], generator=noise).exp()
    ).to(torch.bfloat16)


def by_the_formula(
    rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    scales = [tensor.float().abs().amax(-1, keepdim=True) / 127 for tensor in (rows, weight)]
    integers = (rows.float() * (1 / scales[0]) + 0.5).floor(), (weight.float() / scales[1]).round()
    sums = integers[0].double() @ integers[1].double().T
    return sums * scales[0] * scales[1].T + (0 if bias is None else bias.double())


@needs_int8
@pytest.mark.parametrize(("outer", "inner"), [(8, 64), (72, 128), (136, 576), (1024, 1728)])
@pytest.mark.parametrize("biased", [False, True])
def test_results_follow_the_formula_and_depend_on_their_row_only(
    outer: int, inner: int, biased: bool
) -> None:
    rows, weight = numbers(150, inner), numbers(outer, inner, seed=1) / inner**0.5
    bias = numbers(1, outer, seed=2)[0] if biased else None
    integers = Int8Weight.of(weight, bias)
    together = integers.product(rows)
    expected = by_the_formula(rows, weight, bias)
    assert (
        float((together.double() - expected).abs().max() / expected.abs().max()) < 2**-8
    )  # rounded to bfloat16
    for count in (1, 3, 4, 5, 8, 9, 12, 13, 16, 17, 127, 129, 150):
        for first in {0, 150 - count}:
            assert torch.equal(
                integers.product(rows[first : first + count]), together[first : first + count]
            )


@needs_int8
def test_results_are_near_the_exact_product() -> None:
    rows, weight = torch.randn(12, 576).bfloat16(), torch.randn(512, 576).bfloat16()
    exact = rows.double() @ weight.double().T
    error = (Int8Weight.of(weight, None).product(rows).double() - exact).norm() / exact.norm()
    assert 1e-4 < float(error) < 2e-2


@needs_int8
def test_rows_of_zeros_or_nan_do_not_change_other_rows() -> None:
    rows, weight = numbers(6, 128), numbers(64, 128, seed=1)
    integers = Int8Weight.of(torch.cat((weight[:63], torch.zeros_like(weight[:1]))), None)
    alone = integers.product(rows)
    rows[1], rows[2, 5], rows[3, 7] = 0.0, float("nan"), float("inf")
    result = integers.product(rows)
    assert torch.equal(result[[0, 4, 5]], alone[[0, 4, 5]])
    assert not result[1].any()
    assert not result[:2, 63].any()


@needs_int8
def test_threads_share_the_outputs() -> None:
    rows, integers = numbers(40, 256), Int8Weight.of(numbers(4096, 256, seed=1), None)
    alone = integers.product(rows)
    torch.set_num_threads(2)
    try:
        assert torch.equal(integers.product(rows), alone)
    finally:
        torch.set_num_threads(1)


def test_which_weights_can_be_quantised() -> None:
    weight = numbers(16, 128)
    assert suits(weight) == avx512_dot.available(avx512_dot.INT8)
    assert not suits(weight.float())
    assert not suits(numbers(16, 96))
    assert not suits(numbers(12, 128))


@needs_int8
def test_weights_are_quantised_once_and_used_up_to_a_number_of_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(backend, "Int8Weight", Counting)
    Counting.num_made = 0
    products = CpuBackend(max_int8_rows=4)
    weight, rows = numbers(64, 128), numbers(5, 128, seed=1)
    few = [products.linear(rows[:4], weight, None) for _ in range(3)]
    assert Counting.num_made == 1
    assert torch.equal(few[0], few[2])
    assert torch.equal(few[0], Int8Weight.of(weight, None).product(rows[:4]))
    assert torch.equal(products.linear(rows, weight, None), dispatch.product(rows, weight, None))
    assert torch.equal(
        products.linear(rows[:2].float(), weight.float(), None),
        dispatch.product(rows[:2].float(), weight.float(), None),
    )


def max_int8_rows(products: Products) -> int:
    return getattr(products.backend, "max_int8_rows", 0)


class Counting(Int8Weight):
    num_made = 0

    @staticmethod
    def of(weight: torch.Tensor, bias: torch.Tensor | None) -> Int8Weight:
        Counting.num_made += 1
        return Int8Weight.of(weight, bias)


def test_targets_never_use_int8_weights() -> None:
    model = copy.deepcopy(make("llama", "sdpa")).bfloat16()
    chosen = [
        Products(),
        Products.of_backend(model, CPU),
        fastest(model),
        everywhere(model),
        resolve_batch_invariance(model, True).products,
    ]
    assert all(tensor is None or max_int8_rows(tensor) == 0 for tensor in chosen)
    assert max_int8_rows(draft_products(model)) == (16 if amx.available() else MAX_ROWS)


def test_the_embedded_draft_model_uses_int8_weights() -> None:
    draft = draft_lm(load_draft(demo.SMOLLM2_DRAFT))
    by_ours = amx.available() or avx512_dot.available()
    assert max_int8_rows(draft.products) == (
        (16 if amx.available() else MAX_ROWS) if by_ours else 0
    )
