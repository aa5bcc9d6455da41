"""Measure this machine's peak rates, and read the shapes of a loaded model."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from papers.sssd.paper_settings import (
    ADDED_BYTES,
    GEMM_SIZE,
    PEAK_RUNS,
)
from papers.sssd.roofline import Matmul, Peak, Shapes

MATMULS = (nn.Linear, Conv1D)


def measured_peak(device: torch.device, dtype: torch.dtype) -> Peak:
    """Measure a device's peak rates with a large matrix product and a large sum.

    As in the paper's public code, the result is the best of several runs.
    """
    size = GEMM_SIZE.get(device.type, GEMM_SIZE["cpu"])
    count = ADDED_BYTES.get(device.type, ADDED_BYTES["cpu"]) // dtype.itemsize
    left, right = (torch.ones(size, size, dtype=dtype, device=device) for _ in range(2))
    first, second, out = (torch.ones(count, dtype=dtype, device=device) for _ in range(3))
    product = _fastest(lambda: left @ right, device)
    added = _fastest(lambda: torch.add(first, second, out=out), device)
    return Peak(2 * size**3 / product, 3 * count * dtype.itemsize / added)


def shapes_of(model: PreTrainedModel) -> Shapes:
    """Read the shapes of a model from its linear modules and its configuration."""
    config = model.config.get_text_config(decoder=True)
    counts: dict[tuple[str, int, int], int] = {}
    for name, module in model.named_modules():
        if isinstance(module, MATMULS):
            rows, columns = module.weight.shape
            sizes = (columns, rows) if isinstance(module, nn.Linear) else (rows, columns)
            key = (name.rpartition(".")[2], *sizes)
            counts[key] = counts.get(key, 0) + 1
    heads = config.num_attention_heads
    return Shapes(
        config.hidden_size,
        config.num_hidden_layers,
        heads,
        getattr(config, "num_key_value_heads", None) or heads,
        getattr(config, "head_dim", None) or config.hidden_size // heads,
        model.dtype.itemsize,
        tuple(Matmul(*key, count) for key, count in counts.items()),
    )


def _fastest(call: Callable[[], Any], device: torch.device) -> float:
    times = []
    for _ in range(PEAK_RUNS):
        synchronise(device)
        start = time.perf_counter()
        call()
        synchronise(device)
        times.append(time.perf_counter() - start)
    return min(times)


def synchronise(device: torch.device) -> None:
    """Wait until an accelerator has finished its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
