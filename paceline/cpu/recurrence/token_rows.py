"""Convert the queries, keys and gates of recurrences to float32.

torch uses different instructions for the last elements of a tensor, so the rounding of an element
depends on its position. In this module, the position of an element or a row does not affect the
result.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from paceline.cpu import simd_f32x8
from paceline.cpu.memory import FLOAT32, FLOAT_BYTES, HALF_BYTES, KINDS, address, load_lanes
from paceline.cpu.settings import NORM_EPS, SOFTPLUS_LINEAR
from paceline.cpu.simd_f32x8 import WIDTH
from paceline.util.compiled import compiled


def float_rows(rows: Tensor, scale: float = 1.0, normalised: bool = False) -> Tensor:
    """Convert rows to float32, multiply them by a factor, and pad them with zeros.

    Args:
        rows: Queries or keys, [tokens, groups, size], in one of the dtypes in `KINDS`.
        scale: Factor by which to multiply the rows.
        normalised: Whether to divide each row by its L2 norm first.
    Returns:
        Float32 [tokens, groups, size rounded up to a multiple of 8].
    """
    if rows.shape[2] % WIDTH:
        rows = pad(rows, (0, -rows.shape[2] % WIDTH))
    if rows.stride(2) != 1:
        rows = rows.contiguous()
    tokens, groups, size = rows.shape
    out = torch.empty(tokens, groups, size)
    item = rows.element_size()
    strides = rows.stride(0) * item, rows.stride(1) * item
    _convert(
        rows.data_ptr(),
        KINDS[rows.dtype],
        strides,
        (tokens, groups, size),
        out.data_ptr(),
        scale,
        normalised,
    )
    return out


def exponentials(numbers: Tensor) -> Tensor:
    """Compute exp(x) for a float32 tensor of numbers <= 0."""
    numbers = numbers.contiguous()
    out = torch.empty_like(numbers)
    _exponentiate(numbers.data_ptr(), out.data_ptr(), numbers.numel())
    return out


def step_sizes(
    numbers: Tensor, bias: Tensor | None, limits: tuple[float, float], limited: Tensor
) -> Tensor:
    """Compute the step sizes of a state-space model: softplus(numbers + bias).

    Args:
        numbers: Step sizes before the bias and softplus, [tokens, heads].
        bias: Bias, [heads], or None.
        limits: Smallest and largest step size.
        limited: Whether to clamp each token's step sizes to the limits, bool [tokens].
    Returns:
        Float32 [tokens, heads].
    """
    wide = numbers.float()
    if bias is not None:
        wide = wide + bias.float()
    out = torch.empty(wide.shape)
    _soften(wide.contiguous().numpy(), limited.numpy(), limits[0], limits[1], out.numpy())
    return out


@compiled
def _convert(
    source: int,
    kind: int,
    strides: tuple[int, int],
    shape: tuple[int, int, int],
    target: int,
    scale: float,
    normalised: bool,
) -> None:
    """Convert and scale rows, as described in `float_rows`.

    Eight lanes compute the L2 norm. Lane l sums the squares of elements l, l + 8, and so on.
    """
    tokens, groups, size = shape
    step = WIDTH * (FLOAT_BYTES if kind == FLOAT32 else HALF_BYTES)
    for token in range(tokens):
        for group in range(groups):
            row = source + token * strides[0] + group * strides[1]
            factor = np.float32(scale)
            if normalised:
                squares = simd_f32x8.splat(np.float32(0.0))
                for vector in range(size // WIDTH):
                    numbers = load_lanes(kind, row + vector * step)
                    squares = simd_f32x8.fused(numbers, numbers, squares)
                total = simd_f32x8.total(squares) + np.float32(NORM_EPS)
                factor = np.float32(1.0) / np.sqrt(total) * factor
            factors = simd_f32x8.splat(factor)
            for vector in range(size // WIDTH):
                numbers = simd_f32x8.multiply(load_lanes(kind, row + vector * step), factors)
                simd_f32x8.store(target, numbers)
                target += WIDTH * FLOAT_BYTES


@compiled
def _exponentiate(source: int, target: int, count: int) -> None:
    vector_bytes = count // WIDTH * WIDTH * FLOAT_BYTES
    for offset in range(0, vector_bytes, WIDTH * FLOAT_BYTES):
        simd_f32x8.store(target + offset, simd_f32x8.exp(simd_f32x8.load(source + offset)))
    rest = np.zeros(WIDTH, dtype=np.float32)
    for offset in range(vector_bytes, count * FLOAT_BYTES, FLOAT_BYTES):
        lanes = simd_f32x8.exp(simd_f32x8.splat(simd_f32x8.load_float(source + offset)))
        simd_f32x8.store(address(rest), lanes)
        simd_f32x8.store_float(target + offset, rest[0])


@compiled
def _soften(numbers: Any, limited: Any, low: float, high: float, out: Any) -> None:
    for token in range(numbers.shape[0]):
        for head in range(numbers.shape[1]):
            number = float(numbers[token, head])
            size = number if number > SOFTPLUS_LINEAR else math.log1p(math.exp(number))
            if limited[token]:
                size = min(max(size, low), high)
            out[token, head] = np.float32(size)
