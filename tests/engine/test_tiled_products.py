"""Products by Intel's matrix instructions: their order of sums is the one that is written down."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from paceline.common import amx
from paceline.engine.products.own import product

pytestmark = pytest.mark.skipif(not amx.available(), reason="this processor has no AMX, or the system does not let us use it")


def simply(rows: torch.Tensor, weight: torch.Tensor) -> NDArray[np.float32]:
    """The same sums, number by number: products are exact in float32, each addition rounds once."""
    left, right = rows.float().numpy(), weight.float().numpy()
    total = np.zeros((len(left), len(right)), dtype=np.float32)
    for first in range(0, left.shape[1], 32):
        halves = [np.zeros_like(total), np.zeros_like(total)]
        for place in range(first, first + 32):
            halves[place % 2] += left[:, place, None] * right[:, place]
        total += halves[0] + halves[1]
    return total


@pytest.mark.parametrize(("count", "inner", "outer"), [(1, 32, 16), (5, 96, 48), (16, 64, 144), (17, 128, 64), (40, 1536, 80)])
def test_bits_are_those_of_the_sums_in_order(count: int, inner: int, outer: int) -> None:
    noise = torch.Generator().manual_seed(count)
    rows = (torch.randn(count, inner, generator=noise) * torch.randn(1, inner, generator=noise).exp()).bfloat16()
    weight = torch.randn(outer, inner, generator=noise).bfloat16()
    bias = torch.randn(outer, generator=noise).bfloat16()
    wanted = torch.from_numpy(simply(rows, weight))
    assert torch.equal(product(rows, weight, None), wanted.bfloat16())
    assert torch.equal(product(rows, weight, bias), (wanted + bias.float()).bfloat16())


def test_a_row_that_is_not_a_number_keeps_to_itself() -> None:
    rows, weight = torch.ones(19, 64).bfloat16(), torch.randn(48, 64, generator=torch.Generator().manual_seed(0)).bfloat16()
    plain = product(rows, weight, None)
    rows[3], rows[17, 5] = float("nan"), float("inf")
    found = product(rows, weight, None)
    assert found[3].isnan().all()
    assert not found[17].isfinite().any()
    others = [number for number in range(19) if number not in (3, 17)]
    assert torch.equal(found[others], plain[others])
