"""Define the number formats of compiled code, and load, copy and clear rows.

In compiled code, addresses are int64. Sizes and strides are in bytes unless a comment states
otherwise. Copies and conversions process eight values at a time.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from paceline.cpu import simd_f32x8
from paceline.util.compiled import inlined

FLOAT_BYTES = 4  # float32
HALF_BYTES = FLOAT_BYTES // 2  # bfloat16 and float16
VECTOR_BYTES = FLOAT_BYTES * simd_f32x8.WIDTH
LINE_BYTES = 64  # cache line
FLOAT32, BFLOAT16, FLOAT16 = range(3)  # number formats
KINDS = {torch.float32: FLOAT32, torch.bfloat16: BFLOAT16, torch.float16: FLOAT16}


@inlined
def address(array: NDArray[Any]) -> Any:
    """Return the memory address of an array as a signed integer."""
    # In Numba, the address is unsigned, and sums of signed and unsigned numbers are float64.
    return np.int64(array.ctypes.data)


@inlined
def aligned(array: NDArray[np.float32]) -> Any:
    """Return the first address in an array at which a cache line starts."""
    return (address(array) + LINE_BYTES - 1) // LINE_BYTES * LINE_BYTES


@inlined
def load_lanes(kind: int, source: int) -> Any:
    """Load eight numbers in format `kind`, such as BFLOAT16, as a float32 vector."""
    if kind == FLOAT32:
        return simd_f32x8.load(source)
    if kind == BFLOAT16:
        return simd_f32x8.load_bfloat16(source)
    return simd_f32x8.load_float16(source)


@inlined
def load_row(kind: int, source: int, target: int, count: int) -> None:
    """Convert `count` numbers from format `kind` at `source` to float32 at `target`."""
    if kind == BFLOAT16:
        for i in range(0, count, simd_f32x8.WIDTH):
            vector = simd_f32x8.load_bfloat16(source + HALF_BYTES * i)
            simd_f32x8.store(target + FLOAT_BYTES * i, vector)
    elif kind == FLOAT16:
        for i in range(0, count, simd_f32x8.WIDTH):
            vector = simd_f32x8.load_float16(source + HALF_BYTES * i)
            simd_f32x8.store(target + FLOAT_BYTES * i, vector)
    else:
        copy(source, target, count * FLOAT_BYTES)


@inlined
def copy(source: int, target: int, size: int) -> None:
    """Copy `size` bytes from address `source` to `target`; `size` is a multiple of 32."""
    for offset in range(0, size, VECTOR_BYTES):
        simd_f32x8.store(target + offset, simd_f32x8.load(source + offset))


@inlined
def clear(target: int, size: int) -> None:
    """Set `size` bytes at address `target` to zero; `size` is a multiple of 32."""
    for offset in range(0, size, VECTOR_BYTES):
        simd_f32x8.store(target + offset, simd_f32x8.splat(np.float32(0.0)))
