"""Compare attention over slots and trees in Triton's interpreter with SDPA and a mask.

Needs triton:

    TRITON_INTERPRET=1 .venv/bin/python -m pytest tests/attention/test_tree_kernel.py
"""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from paceline.attention.reach import UNLIMITED, Reach
from paceline.attention.tree import TreeVisibility
from paceline.model.fixed_shapes.inputs import BucketTensors
from paceline.model.fixed_shapes.masks import MaskBuilder, key_positions
from tests.support.triton import patch_interpreter

pytest.importorskip("triton", reason="triton is not installed")
from paceline.attention.tree_kernel import attention_over_tree, store_columns

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="set TRITON_INTERPRET=1"
)


@pytest.fixture(autouse=True)
def mended(monkeypatch: pytest.MonkeyPatch) -> None:
    patch_interpreter(monkeypatch, in_order=False)


def inputs_of(cached: list[int], columns: int) -> BucketTensors:
    """Return random trees after texts; the last column of each row contains no token."""
    rows = len(cached)
    lengths = torch.tensor(cached)
    block = torch.zeros(rows, columns, columns, dtype=torch.bool)
    depth = torch.zeros(rows, columns, dtype=torch.long)
    torch.manual_seed(columns)
    for row in range(rows):
        for column in range(columns):
            if column:
                parent = int(torch.randint(column, ()))
                block[row, column] = block[row, parent]
                depth[row, column] = depth[row, parent] + 1
            block[row, column, column] = True
    positions = lengths[:, None] + depth
    cache_positions = lengths[:, None] + torch.arange(columns)
    if columns > 1:
        cache_positions[:, -1], positions[:, -1] = -1, 0
        block[:, -1], block[:, -1, 0], block[:, :-1, -1] = False, True, False
    store_rows = torch.arange(rows)[:, None].expand(rows, columns)
    return BucketTensors(positions, positions, cache_positions, store_rows, lengths, block)


def expected(
    query: Tensor, key: Tensor, value: Tensor, inputs: BucketTensors, reach: Reach
) -> Tensor:
    rows, heads, columns, dim = query.shape
    groups, shape = heads // key.shape[1], (rows, columns, key.shape[2])
    masks = MaskBuilder(shape, groups, torch.float32, torch.device("cpu"))
    grouped = query.float().reshape(rows, key.shape[1], -1, dim)
    output = torch.nn.functional.scaled_dot_product_attention(
        grouped, key.float(), value.float(), attn_mask=masks.masks(inputs, {"": reach})[""]
    )
    return output.reshape(rows, heads, columns, -1).transpose(1, 2)


@pytest.mark.parametrize(
    ("columns", "dim", "reach", "dtype"),
    [
        (1, 64, UNLIMITED, torch.float32),
        (4, 64, UNLIMITED, torch.float32),
        (16, 128, UNLIMITED, torch.float32),
        (16, 80, UNLIMITED, torch.bfloat16),
        (8, 64, Reach(window=40), torch.float32),
        (8, 64, Reach(chunk=96), torch.float32),
    ],
)
def test_kernel_equals_sdpa(columns: int, dim: int, reach: Reach, dtype: torch.dtype) -> None:
    cached = [0, 5, 300, 511]
    inputs = inputs_of(cached, columns)
    key, value = torch.randn(2, len(cached), 2, 640, dim).to(dtype)
    query = torch.randn(len(cached), columns, 6, dim).to(dtype).transpose(1, 2)
    tree = TreeVisibility(
        inputs.cached,
        inputs.block,
        inputs.positions,
        key_positions(inputs),
        torch.arange(len(cached)),
        reach,
    )
    output = attention_over_tree(query, key, value, tree, None)
    regions = [states.transpose(0, 1).flatten(1, 2)[None] for states in (key, value)]
    strides = [(dim, *states.stride()[1:]) for states in regions]
    views = [
        each.as_strided((1, 2, 640, dim), stride)
        for each, stride in zip(regions, strides, strict=True)
    ]
    at_regions = replace(tree, key_rows=640 * tree.key_rows)
    assert torch.equal(attention_over_tree(query, views[0], views[1], at_regions, None), output)
    wanted = expected(query, key, value, inputs, reach).to(dtype)
    real = inputs.cache_positions >= 0
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(output[real], wanted[real], atol=tolerance, rtol=tolerance)
    assert torch.isfinite(output).all()


def test_columns_without_a_token_are_not_stored() -> None:
    keys, values = torch.randn(2, 3, 5, 2, 24).transpose(2, 3)
    stores = torch.zeros(3, 2, 40, 24), torch.zeros(3, 2, 40, 24)
    positions = torch.tensor([[3, 4, 5, 6, -1], [0, 1, -1, -1, -1], [39, 38, 37, -1, 1]])
    slots = torch.tensor([2, 0, 1])[:, None].expand(3, 5).contiguous()
    store_columns((keys, values), stores, positions, slots)
    for store, states in zip(stores, (keys, values), strict=True):
        wanted = torch.zeros_like(store)
        for row, column in (positions >= 0).nonzero().tolist():
            wanted[slots[row, column], :, positions[row, column]] = states[row, :, column]
        assert torch.equal(store, wanted)
