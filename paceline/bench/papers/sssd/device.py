"""The roofline of the machine and the model at hand: peaks measured, sizes read off modules."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from paceline.plan.roofline import Matmul, Peak, Shapes

MATMULS = (nn.Linear, Conv1D)
_GEMM = {
    "cuda": 8192,
    "cpu": 1024,
}  # rows and columns of the product that is timed; the public code has 8192
_ADDED = {
    "cuda": 1 << 30,
    "cpu": 1 << 28,
}  # bytes of each array of the sum that is timed; the public code has 1 GiB
_RUNS = 7


def measured_peak(device: torch.device, dtype: torch.dtype) -> Peak:
    """Measure what a device can do by a large matrix product and a large sum, as the public code
    does it: best of some runs.
    """
    size = _GEMM.get(device.type, _GEMM["cpu"])
    count = _ADDED.get(device.type, _ADDED["cpu"]) // dtype.itemsize
    left, right = (torch.ones(size, size, dtype=dtype, device=device) for _ in range(2))
    one, other, out = (torch.ones(count, dtype=dtype, device=device) for _ in range(3))
    product = _fastest(lambda: left @ right, device)
    added = _fastest(lambda: torch.add(one, other, out=out), device)
    return Peak(2 * size**3 / product, 3 * count * dtype.itemsize / added)


def shapes_of(model: PreTrainedModel) -> Shapes:
    """Read the sizes off a model: its linear modules, and the heads of its configuration."""
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
    for _ in range(_RUNS):
        synchronise(device)
        start = time.perf_counter()
        call()
        synchronise(device)
        times.append(time.perf_counter() - start)
    return min(times)


def synchronise(device: torch.device) -> None:
    """Wait until an accelerator has done what it was asked for."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
