"""Compare our kernels with torch's operations."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import Tensor

from paceline.backend.attention_metadata import AttentionMetadata
from paceline.backend.interface import ScoreOptions
from paceline.backend.resolve import backend_of, cpu_backend
from paceline.backend.torch_backend import TORCH
from paceline.cpu.backend import CPU

DTYPES = [torch.float32, torch.bfloat16]
WITHOUT_KERNELS = (
    "paceline.model.cached_lm",
    "paceline.model.loading",
    "paceline.attention",
    "paceline.kv_cache.slots",
    "paceline.sampling.sampler",
    "paceline.verification.verify",
)


def numbers(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def test_each_device_has_its_backend() -> None:
    assert backend_of(torch.device("cpu")) is cpu_backend() is CPU
    assert backend_of(torch.device("cuda:0")) is TORCH


@pytest.mark.parametrize("dtype", DTYPES)
def test_products_and_norms(dtype: torch.dtype) -> None:
    rows, weight = numbers(3, 64, dtype=dtype), numbers(16, 64, dtype=dtype, seed=1)
    bias = numbers(16, dtype=dtype, seed=2)
    assert CPU.takes_weight(weight)
    assert not CPU.takes_weight(weight[:, :60])
    torch.testing.assert_close(
        CPU.linear(rows, weight, bias), TORCH.linear(rows, weight, bias), rtol=2e-2, atol=1e-1
    )
    torch.testing.assert_close(
        CPU.rms_norm(rows, weight[0], 1e-5), TORCH.rms_norm(rows, weight[0], 1e-5)
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "options",
    [ScoreOptions(), ScoreOptions(0.3, 5.0, numbers(4, seed=7)), ScoreOptions(scaling=0.5)],
)
def test_attention(dtype: torch.dtype, options: ScoreOptions) -> None:
    query = numbers(2, 4, 5, 16, dtype=dtype)
    key, value = (numbers(2, 2, 12, size, dtype=dtype, seed=size) for size in (16, 8))
    places = np.arange(7, 12)[None].repeat(2, 0)
    positions = np.array([[7, 8, 8, 9, 10], [4, 5, 6, 6, 7]])
    metadata = AttentionMetadata.from_columns(
        np.array([7, 4]), places, positions, np.zeros((2, 5), dtype=np.bool_)
    )
    mask = torch.zeros(2, 1, 5, 12, dtype=torch.bool)
    mask[0, :, :, :7] = mask[1, :, :, :4] = True
    mask[:, 0, :, 7:] = torch.eye(5, dtype=torch.bool)
    mask[:, 0, 1:, 7] = True
    mask[1, 0, 4] = False  # a query that sees nothing
    ours, theirs = (
        backend.attention(query, key, value, mask, metadata, options) for backend in (CPU, TORCH)
    )
    assert ours.shape == theirs.shape == (2, 5, 4, 8)
    torch.testing.assert_close(ours, theirs, rtol=2e-2, atol=2e-2)
    assert not theirs[1, 4].any()
    single = query[:, :, :1]
    in_order = AttentionMetadata.in_order(2, 12)
    torch.testing.assert_close(
        CPU.attention(single, key, value, None, in_order, options),
        TORCH.attention(single, key, value, None, in_order, options),
        rtol=2e-2,
        atol=2e-2,
    )


def test_top_tokens() -> None:
    logits = numbers(6, 40)
    logits[2, 3:6] = logits[2].max() + 1  # the lowest id of equals comes first
    logits[4, 0] = torch.nan
    assert torch.equal(CPU.argmax(logits), TORCH.argmax(logits))
    rows = [0, 1, 2, 3, 5]
    (token_ids, probs), (expected, exact) = (
        backend.topk(logits[rows], 3) for backend in (CPU, TORCH)
    )
    assert np.array_equal(token_ids, expected)
    assert np.allclose(probs, exact, rtol=1e-5)
    torch.testing.assert_close(CPU.entropies(logits[rows]), TORCH.entropies(logits[rows]))


def test_moves_of_cache_positions() -> None:
    stores = [numbers(count, 3, heads, 10, 16, seed=heads) for count, heads in ((2, 2), (1, 1))]
    moved = [[store.clone() for store in stores] for _ in range(2)]
    slots = np.array([0, 2])
    source, target = np.array([[3, 5, 6], [2, 4, 9]]), np.array([[2, 3, 4], [2, 3, 4]])
    for backend, copies in zip((CPU, TORCH), moved, strict=True):
        backend.row_mover(copies)(slots, source, target)
    for ours, theirs, before in zip(*moved, stores, strict=True):
        assert torch.equal(ours, theirs)
        assert torch.equal(ours[:, 0, :, 2:5], before[:, 0][:, :, [3, 5, 6]])
        assert torch.equal(ours[:, 1], before[:, 1])


def test_kernels_are_imported_when_they_are_needed() -> None:
    """Imports run one by one, so a failure names the module."""
    code = f"""
import importlib, sys
for module in {WITHOUT_KERNELS}:
    importlib.import_module(module)
    found = [name for name in sys.modules if name.startswith("paceline.cpu")]
    assert not found, f"{{module}} imports {{found}}"
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
