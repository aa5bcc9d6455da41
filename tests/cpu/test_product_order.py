"""Check that the product kernels add in the order that they document."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from paceline.cpu import amx, avx512_dot
from paceline.cpu.linear import dispatch
from paceline.cpu.linear.dispatch import product
from paceline.cpu.linear.dotted import multiply_dotted
from paceline.cpu.linear.tiled import multiply_tiled

Numbers = NDArray[np.float32]


def tiled_sums(left: Numbers, right: Numbers) -> Numbers:
    """Add number by number: products are exact in float32, each addition rounds once."""
    total = np.zeros((len(left), len(right)), dtype=np.float32)
    for first in range(0, left.shape[1], 32):
        halves = [np.zeros_like(total), np.zeros_like(total)]
        for k in range(first, first + 32):
            halves[k % 2] += left[:, k, None] * right[:, k]
        total += halves[0] + halves[1]
    return total


def dotted_sums(left: Numbers, right: Numbers) -> Numbers:
    lanes = [np.zeros((len(left), len(right)), dtype=np.float32) for _ in range(4)]
    for first in range(0, left.shape[1], 8):
        for lane, total in enumerate(lanes):
            for k in (first + 2 * lane + 1, first + 2 * lane):
                total += left[:, k, None] * right[:, k]
    return (lanes[0] + lanes[2]) + (lanes[1] + lanes[3])


KERNELS = [
    pytest.param(
        multiply_tiled,
        tiled_sums,
        marks=pytest.mark.skipif(not amx.available(), reason="no AMX here, or it may not be used"),
    ),
    pytest.param(
        multiply_dotted,
        dotted_sums,
        marks=pytest.mark.skipif(not avx512_dot.available(), reason="no AVX512_BF16 here"),
    ),
]
SHAPES = [(1, 32, 16), (5, 96, 48), (16, 64, 144), (17, 128, 64), (40, 1536, 80), (330, 1536, 16)]


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], None]:
    """Return a function that makes `product` use a kernel on any processor."""
    return lambda kernel: monkeypatch.setattr(dispatch, "kernel_of", lambda *_: kernel)


def check_bits(
    sums: Callable[[Numbers, Numbers], Numbers], count: int, inner: int, outer: int
) -> None:
    """Compare products with sums, with and without a bias; the weight must not change."""
    noise = torch.Generator().manual_seed(count)
    rows = (
        torch.randn(count, inner, generator=noise) * torch.randn(1, inner, generator=noise).exp()
    ).bfloat16()
    weight = torch.randn(outer, inner, generator=noise).bfloat16()
    bias = torch.randn(outer, generator=noise).bfloat16()
    original = weight.clone()
    wanted = torch.from_numpy(sums(rows.float().numpy(), weight.float().numpy()))
    assert torch.equal(product(rows, weight, None), wanted.bfloat16())
    assert torch.equal(product(rows, weight, bias), (wanted + bias.float()).bfloat16())
    assert torch.equal(weight, original)


@pytest.mark.parametrize(("count", "inner", "outer"), SHAPES)
@pytest.mark.parametrize(("kernel", "sums"), KERNELS)
def test_bits_agree_with_sums_in_the_documented_order(
    use: Callable[[Any], None],
    kernel: Any,
    sums: Callable[[Numbers, Numbers], Numbers],
    count: int,
    inner: int,
    outer: int,
) -> None:
    use(kernel)
    check_bits(sums, count, inner, outer)


@pytest.mark.slow
def test_emulated_amx(tmp_path: Path) -> None:
    """Emulate the instructions, in a new process with an empty cache of compiled code."""
    script = [sys.executable, "-m", "tests.support.emulated_amx"]
    subprocess.run(
        script, check=True, env={**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}, timeout=600
    )


@pytest.mark.parametrize(("kernel", "sums"), KERNELS)
def test_a_row_of_nan_does_not_change_other_rows(
    use: Callable[[Any], None], kernel: Any, sums: Any
) -> None:
    use(kernel)
    rows, weight = (
        torch.ones(19, 64).bfloat16(),
        torch.randn(48, 64, generator=torch.Generator().manual_seed(0)).bfloat16(),
    )
    plain = product(rows, weight, None)
    rows[3], rows[17, 5] = float("nan"), float("inf")
    result = product(rows, weight, None)
    assert result[3].isnan().all()
    assert not result[17].isfinite().any()
    others = [number for number in range(19) if number not in (3, 17)]
    assert torch.equal(result[others], plain[others])


@pytest.mark.parametrize(("count", "inner", "outer"), [(1, 8, 16), (7, 200, 656), (33, 72, 1104)])
def test_weights_stored_as_inputs_by_outputs(count: int, inner: int, outer: int) -> None:
    """Sums follow the order of the inputs, regardless of the number of rows.

    With AVX512_BF16, the second input of each pair comes first.
    """
    noise = torch.Generator().manual_seed(count)
    rows = torch.randn(count, inner, generator=noise).bfloat16()
    weight = torch.randn(inner, outer, generator=noise).bfloat16()
    bias = torch.randn(outer, generator=noise).bfloat16()
    total = torch.zeros(count, outer)
    second_first = int(avx512_dot.available())
    for number in (index ^ second_first for index in range(inner)):
        total += rows[:, number, None].float() * weight[number].float()
    assert torch.equal(product(rows, weight.T, None), total.bfloat16())
    assert torch.equal(product(rows, weight.T, bias), (total + bias.float()).bfloat16())
    assert torch.equal(product(rows[-1:], weight.T, None), total[-1:].bfloat16())
    exact = rows.double() @ weight.double()
    found = product(rows.float(), weight.float().T, None)
    torch.testing.assert_close(found.double(), exact, rtol=1e-4, atol=1e-4)
    assert torch.equal(product(rows[:2].float(), weight.float().T, None), found[:2])


def test_weights_that_no_kernel_supports_are_recognised() -> None:
    weight = torch.empty(64, 48)
    assert dispatch.takes_weight(weight)
    assert dispatch.takes_weight(weight.T)
    assert dispatch.takes_weight(weight.bfloat16().T)
    assert not dispatch.takes_weight(weight.half().T)
    assert not dispatch.takes_weight(torch.empty(64, 40).T)  # outputs: a multiple of 16
    assert not dispatch.takes_weight(weight[:, ::2])
