"""Compute an RMS norm in one kernel launch; torch needs eight launches."""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from paceline.cuda.programs import normalise_row
from paceline.cuda.settings import MAX_NORM_SIZE, NUMBERS_PER_WARP


def rms_norm(rows: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return weight * rows / sqrt(mean(rows ** 2) + eps), rounded as in transformers.

    Args:
        rows: Rows, [..., size].
        weight: Contiguous weight of the same dtype, [size].
        eps: Number to add to the mean of the squares.
    """
    rows, size = rows.contiguous(), len(weight)
    out, numbers = torch.empty_like(rows), triton.next_power_of_2(size)
    warps = max(1, min(16, numbers // NUMBERS_PER_WARP))
    normalise_row[(rows.numel() // size,)](rows, weight, out, size, eps, numbers, num_warps=warps)
    return out


def takes_norm(weight: Tensor) -> bool:
    """Return whether `rms_norm` supports this weight vector."""
    return weight.is_cuda and weight.is_contiguous() and len(weight) <= MAX_NORM_SIZE
