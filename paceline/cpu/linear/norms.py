"""Compute an RMS norm in one compiled call; torch needs seven operations.

    weight * rounded(row / sqrt(mean(row ** 2) + eps))

All norms of the Llama family in transformers use this formula. The mean is float32, and the
quotient is rounded to the rows' dtype before the multiplication. Other rows do not affect a row's
result. Eight lanes compute the mean: lane l sums the squares of elements l, l + 8, and so on.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from paceline.cpu import simd_f32x8
from paceline.cpu.memory import BFLOAT16, FLOAT32, FLOAT_BYTES, HALF_BYTES, KINDS, load_lanes
from paceline.cpu.settings import NORM_TOLERANCE_BFLOAT16, NORM_TOLERANCE_FLOAT32
from paceline.cpu.simd_f32x8 import WIDTH
from paceline.util.compiled import compiled

NORM_TOLERANCES = {torch.float32: NORM_TOLERANCE_FLOAT32, torch.bfloat16: NORM_TOLERANCE_BFLOAT16}


def rms_norm(rows: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return weight * rows / sqrt(mean(rows ** 2) + eps), over the last dimension.

    Args:
        rows: Rows to normalise, float32 or bfloat16 [..., size], on the CPU. The size is a multiple
            of 8.
        weight: Weight of the norm, contiguous [size], in the dtype of `rows`.
        eps: Epsilon of the norm, which is added to the mean of the squares.
    """
    rows = rows.contiguous()
    out, size = torch.empty_like(rows), len(weight)
    normalise(
        rows.data_ptr(),
        weight.data_ptr(),
        out.data_ptr(),
        KINDS[rows.dtype],
        rows.numel() // size,
        size,
        eps,
    )
    return out


def takes_norm(weight: Tensor) -> bool:
    """Return whether `rms_norm` supports a norm with the given weight, [size]."""
    return weight.device.type == "cpu" and weight.is_contiguous() and len(weight) % WIDTH == 0


@compiled
def normalise(
    rows: int, weight: int, out: int, kind: int, count: int, size: int, eps: float
) -> None:
    """Compute the RMS norm of `count` rows of `size` elements.

    Args:
        rows: Address of the rows.
        weight: Address of the norm's weight.
        out: Address at which to write the normalised rows; may equal `rows`.
        kind: Number format of the rows, the weight and the output: FLOAT32 or BFLOAT16.
        count: Number of rows.
        size: Number of elements per row, a multiple of 8.
        eps: Epsilon of the norm, which is added to the mean of the squares.
    """
    number_bytes = FLOAT_BYTES if kind == FLOAT32 else HALF_BYTES
    row_bytes, step = size * number_bytes, WIDTH * number_bytes
    for row in range(count):
        source, target = rows + row * row_bytes, out + row * row_bytes
        squares = simd_f32x8.splat(np.float32(0.0))
        for offset in range(0, row_bytes, step):
            vector = load_lanes(kind, source + offset)
            squares = simd_f32x8.fused(vector, vector, squares)
        mean = simd_f32x8.total(squares) / np.float32(size)
        scale = simd_f32x8.splat(np.float32(1.0) / np.sqrt(mean + np.float32(eps)))
        for offset in range(0, row_bytes, step):
            vector = simd_f32x8.multiply(load_lanes(kind, source + offset), scale)
            if kind == BFLOAT16:
                vector = simd_f32x8.multiply(
                    simd_f32x8.to_bfloat16(vector), simd_f32x8.load_bfloat16(weight + offset)
                )
                simd_f32x8.store_bfloat16(target + offset, vector)
            else:
                vector = simd_f32x8.multiply(vector, simd_f32x8.load(weight + offset))
                simd_f32x8.store(target + offset, vector)
