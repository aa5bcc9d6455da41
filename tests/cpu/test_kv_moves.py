"""Check that compiled moves of accepted nodes have the same result as torch's."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from paceline.cpu.kv_row_moves import CacheTensors
from paceline.kv_cache.blocks import CacheSize
from paceline.kv_cache.slot_cache import SlotCache

SLOTS, CAPACITY = 3, 40


def filled(dims: list[tuple[int, int]], dtype: torch.dtype) -> SlotCache:
    """Return a cache of random bits with the given heads and dims per layer."""
    cache = SlotCache(len(dims), maximum=CacheSize(SLOTS, CAPACITY))
    cache.reserve(SLOTS, CAPACITY)
    random = torch.Generator().manual_seed(1)
    for layer, (heads, dim) in enumerate(dims):
        for slot in range(SLOTS):
            keys, values = (
                torch.randn(heads, CAPACITY, dim, generator=random).to(dtype) for _ in range(2)
            )
            cache.write(slot, layer, 0, keys, values)
    return cache


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_move_as_torch_moves_them(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(3)
    dims = [(2, 64), (1, 32), (3, 16)]
    moved, torchs = filled(dims, dtype), filled(dims, dtype)
    with monkeypatch.context() as patch:
        patch.setattr(CacheTensors, "of", lambda tensors: None)
        torchs.move(np.array([[0]]), np.array([[0]]), np.array([[0]]))  # it is found out once
    for number in range(50):
        if number == 25:
            moved.reserve(SLOTS + 2, CAPACITY + 8)  # there are other stores then
        slots = np.sort(random.choice(SLOTS, 2, replace=False))[:, None]
        base = random.integers(0, 20, (2, 1))
        path = np.sort(np.stack([random.choice(16, 5, replace=False) for _ in range(2)]))
        source, target = base + path, base + np.broadcast_to(np.arange(5), (2, 5))
        moved.move(slots, source, target)
        torchs.window.indices.clear()
        torchs.move(slots, source, target)
    for column, other in zip(moved.layers, torchs.layers, strict=True):
        for store, expected in ((column.keys, other.keys), (column.values, other.values)):
            assert torch.equal(store[:SLOTS, :, :CAPACITY], expected)


def test_torch_moves_rows_of_other_sizes() -> None:
    cache = filled([(2, 12)], torch.bfloat16)
    assert CacheTensors.of([cache.layers[0].keys]) is None
    before = cache.layers[0].keys.clone()
    cache.move(np.array([[1]]), np.array([[7, 9]]), np.array([[6, 7]]))
    assert torch.equal(cache.layers[0].keys[1, :, 6:8], before[1, :, [7, 9]])
    assert torch.equal(cache.layers[0].keys[0], before[0])
