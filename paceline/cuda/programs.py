"""Define the Triton programs of the CUDA backend."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def normalise_row(rows, weight, out, size, eps, NUMBERS: tl.constexpr):
    """Store weight * rounded(row / sqrt(mean(row ** 2) + eps)) for one row."""
    at = tl.program_id(0).to(tl.int64) * size + tl.arange(0, NUMBERS)
    column = tl.arange(0, NUMBERS)
    inside = column < size
    numbers = tl.load(rows + at, mask=inside, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(numbers * numbers) / size + eps)
    factors = tl.load(weight + column, mask=inside, other=0.0)
    rounded = (numbers * scale).to(factors.dtype)
    tl.store(out + at, rounded * factors, mask=inside)
