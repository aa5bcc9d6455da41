"""Test attention with matrix instructions: the order of its sums, and hidden keys."""

from __future__ import annotations

import pytest
import torch

from paceline.attention import AttentionMetadata
from paceline.cpu import amx
from paceline.cpu.attention.invariant import attention_by_position
from tests.attention.test_by_position import DTYPES
from tests.cpu.test_product_order import tiled_sums

with_amx = pytest.mark.skipif(not amx.available(), reason="no AMX here, or it may not be used")


@with_amx
@pytest.mark.parametrize("keys", [1, 31, 32, 33, 300])
@pytest.mark.parametrize("dims", [16, 64, 80, 128])
def test_values_are_added_in_the_documented_order(keys: int, dims: int) -> None:
    """All scores are 0 and all weights 1, so the results are sums of the values."""
    noise = torch.Generator().manual_seed(keys)
    value = (
        torch.randn(1, 2, keys, dims, generator=noise) * torch.randn(dims, generator=noise).exp()
    ).bfloat16()
    key = torch.randn(1, 2, keys, 32, generator=noise).bfloat16()
    found = attention_by_position(
        torch.zeros(1, 6, 1, 32).bfloat16(),
        key,
        value,
        None,
        AttentionMetadata.in_order(1, keys),
    )
    steps = -(-keys // 32) * 32
    ones, rows = torch.zeros(1, steps), torch.zeros(dims, steps)
    ones[:, :keys] = 1
    for head in range(2):
        rows[:, :keys] = value[0, head].float().T
        wanted = torch.from_numpy(tiled_sums(ones.numpy(), rows.numpy())) / keys
        for member in range(3):
            assert torch.equal(found[0, 0, 3 * head + member], wanted[0].bfloat16())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("groups", [1, 3, 5, 20])
def test_nan_affects_only_queries_that_see_it(dtype: torch.dtype, groups: int) -> None:
    """Two branches of four nodes follow 70 keys; the second branch contains only NaN."""
    noise = torch.Generator().manual_seed(groups)
    query = torch.randn(1, 2 * groups, 8, 64, generator=noise).to(dtype)
    key, value = (torch.randn(1, 2, 78, 64, generator=noise).to(dtype) for _ in range(2))
    mask = torch.ones(1, 1, 8, 78, dtype=torch.bool)
    mask[..., 70:] = torch.ones(8, 8).tril().bool()
    mask[..., 4:, 70:74] = False
    order = AttentionMetadata.in_order(1, 78)
    plain = attention_by_position(query, key, value, mask, order)
    assert plain.isfinite().all()
    key[:, :, 74:], value[:, :, 74:] = float("nan"), float("inf")
    found = attention_by_position(query, key, value, mask, order)
    assert torch.equal(found[:, :4], plain[:, :4])
    assert found[:, 4:].isnan().all()
