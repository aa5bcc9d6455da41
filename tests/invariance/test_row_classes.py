"""Test the search for row counts with identical bits, on functions whose classes are known."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import linear

from paceline.invariance.row_classes import (
    RowClass,
    agreeing_runs,
    bits,
    fold,
    heavy_tailed,
    widest_class,
)

pytestmark = pytest.mark.processor
COUNTS = (*range(1, 17), 17, 24, 33, 64)
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def product(weight: Tensor, order: Tensor) -> Callable[[Tensor], Tensor]:
    """Return rows times weight, summed in float32 in the order of the inner dimension."""

    def multiply(rows: Tensor) -> Tensor:
        total = torch.zeros(len(rows), len(weight))
        for place in order.tolist():
            total += rows[:, place, None].float() * weight[:, place].float()
        return total.to(rows.dtype)

    return multiply


def folded(dtype: torch.dtype, inner: int = 48) -> tuple[Tensor, Tensor]:
    noise = torch.Generator().manual_seed(3)
    weight = (torch.randn(40, inner, generator=noise) * 0.05).to(dtype)
    return fold(weight, heavy_tailed(COUNTS[-1], (inner,), weight, noise), noise)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("changes", [(), (2,), (2, 4), (8,), (3, 17, 33)])
def test_finds_where_the_order_of_the_sums_changes(
    dtype: torch.dtype, changes: tuple[int, ...]
) -> None:
    weight, rows = folded(dtype)
    orders = [
        torch.randperm(48, generator=torch.Generator().manual_seed(seed))
        for seed in range(len(changes) + 1)
    ]

    def function(some: Tensor) -> Tensor:
        return product(weight, orders[sum(len(some) >= change for change in changes)])(some)

    assert agreeing_runs(function, rows, COUNTS) == (1, *changes)


def test_row_index_dependence_leaves_no_class() -> None:
    weight, rows = folded(torch.float32)

    def function(some: Tensor) -> Tensor:
        result = linear(some, weight)
        result[-1] += 1e-3  # as the last elements of a tensor may get another routine
        return result

    assert agreeing_runs(function, rows, COUNTS) == COUNTS


def test_one_element_of_a_row_is_enough() -> None:
    weight, rows = folded(torch.bfloat16)

    def function(some: Tensor) -> Tensor:
        result = product(weight, torch.arange(48))(some)
        if len(some) == 24:
            bits(result)[:, 7] ^= 1  # the next number
        return result

    assert agreeing_runs(function, rows, COUNTS) == (1, 24, 33)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("inner", [48, 49])
def test_folded_weights_show_the_order_in_most_elements(dtype: torch.dtype, inner: int) -> None:
    """In bfloat16, ordinary weights reveal the order of sums in too few elements."""
    weight, rows = folded(dtype, inner)
    assert float((rows.double() @ weight.double().T).abs().max()) < 1e-9  # the true product
    one, other = (
        product(weight, order)(rows) for order in (torch.arange(inner), torch.arange(inner).flip(0))
    )
    assert one.isfinite().all()
    assert (bits(one) != bits(other)).float().mean() > 0.3
    plain = torch.randn(weight.shape, generator=torch.Generator().manual_seed(4)).to(dtype)
    one, other = (
        product(plain, order)(rows) for order in (torch.arange(inner), torch.arange(inner).flip(0))
    )
    if dtype != torch.float32:
        assert (bits(one) != bits(other)).float().mean() < 0.02


def test_folded_weight_keeps_the_memory_layout() -> None:
    store = torch.randn(6 * 8 + 3)
    for weight in (store[3:].view(6, 8), store[3:].view(8, 6).T):
        twin, _ = fold(weight, torch.randn(4, weight.shape[1]), torch.Generator())
        assert twin.stride() == weight.stride()
        assert (twin.data_ptr() - weight.data_ptr()) % 64 == 0


def test_comparison_separates_signed_zeros_but_not_nans() -> None:
    one, other = bits(torch.tensor([0.0, float("nan")])), bits(torch.tensor([-0.0, float("nan")]))
    assert (one == other).tolist() == [False, True]


@given(runs=st.lists(st.sets(st.sampled_from(COUNTS)), min_size=1, max_size=4))
def test_a_common_class_holds_no_change_of_any_function(runs: list[set[int]]) -> None:
    starts = [tuple(sorted({1, *one})) for one in runs]
    found = widest_class(starts, COUNTS)
    assert not any(found.min_rows < start <= found.max_rows for one in starts for start in one)
    assert {found.min_rows, found.max_rows} <= set(COUNTS)
    edges = sorted({1, 65}.union(*starts))
    classes = [
        [count for count in COUNTS if before <= count < after] for before, after in pairwise(edges)
    ]
    assert found.max_rows - found.min_rows == max(one[-1] - one[0] for one in classes)


def test_the_widest_class() -> None:
    assert widest_class([(1,)], COUNTS) == RowClass(1, 64)
    assert widest_class([(1, 2, 4), (1, 8)], COUNTS) == RowClass(8, 64)
    assert widest_class([(1, 2), (1, 64)], COUNTS) == RowClass(2, 33)
    assert (
        widest_class([COUNTS], COUNTS).max_rows in COUNTS[:-1]
    )  # no two agree: a class of one, however far the next count is
