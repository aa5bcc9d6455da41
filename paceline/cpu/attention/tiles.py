"""The inner loops of attention by position: products of a few queries with a few keys, weighted
sums of values, exponentials.

Rows of float32 lie at addresses, a stride of so many bytes apart. Sizes are in bytes, multiples of
32. How many rows a loop takes at a time is a matter of registers; every number is made of the same
    operations in the same order in all of them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.cpu import simd_f32x8, softmax_weighted_sum
from paceline.util.compiled import inlined, load_int64

FLOAT = 4  # bytes
LANES = FLOAT * simd_f32x8.WIDTH
LINE = 64  # bytes that memory gives at once
FLOAT32, BFLOAT16, FLOAT16 = 0, 1, 2  # how numbers are stored


@inlined
def address(array: NDArray[Any]) -> Any:
    """Where an array lies, as a signed number."""
    return np.int64(array.ctypes.data)  # unsigned otherwise, and in a sum with a signed one float64


@inlined
def aligned(store: NDArray[np.float32]) -> Any:
    """Where in an array a line of the cache begins: a vector, or a row of a tile, is then read
    from one line.
    """
    return (address(store) + LINE - 1) // LINE * LINE


@inlined
def load_lanes(kind: int, place: int) -> Any:
    """Read eight numbers as float32."""
    if kind == FLOAT32:
        return simd_f32x8.load(place)
    if kind == BFLOAT16:
        return simd_f32x8.load_bfloat16(place)
    return simd_f32x8.load_float16(place)


@inlined
def load_row(kind: int, source: int, target: int, dim: int) -> None:
    """Read `dim` numbers as float32."""
    if kind == BFLOAT16:
        for d in range(0, dim, 8):
            simd_f32x8.store(target + 4 * d, simd_f32x8.load_bfloat16(source + 2 * d))
    elif kind == FLOAT16:
        for d in range(0, dim, 8):
            simd_f32x8.store(target + 4 * d, simd_f32x8.load_float16(source + 2 * d))
    else:
        for d in range(0, dim, 8):
            simd_f32x8.store(target + 4 * d, simd_f32x8.load(source + 4 * d))


@inlined
def multiply_two(query: int, size: int, key: int, stride: int, out: int, row: int) -> None:
    """Scores of two adjacent queries and four keys."""
    zero = simd_f32x8.splat(np.float32(0.0))
    a0, a1, a2, a3 = zero, zero, zero, zero
    b0, b1, b2, b3 = zero, zero, zero, zero
    for d in range(0, size, LANES):
        a, b = simd_f32x8.load(query + d), simd_f32x8.load(query + size + d)
        k = simd_f32x8.load(key + d)
        a0, b0 = simd_f32x8.fused(a, k, a0), simd_f32x8.fused(b, k, b0)
        k = simd_f32x8.load(key + stride + d)
        a1, b1 = simd_f32x8.fused(a, k, a1), simd_f32x8.fused(b, k, b1)
        k = simd_f32x8.load(key + 2 * stride + d)
        a2, b2 = simd_f32x8.fused(a, k, a2), simd_f32x8.fused(b, k, b2)
        k = simd_f32x8.load(key + 3 * stride + d)
        a3, b3 = simd_f32x8.fused(a, k, a3), simd_f32x8.fused(b, k, b3)
    simd_f32x8.store_sums(out, a0, a1, a2, a3)
    simd_f32x8.store_sums(out + row, b0, b1, b2, b3)


@inlined
def multiply_one(query: int, size: int, key: int, stride: int, out: int) -> None:
    """Scores of one query and four keys."""
    zero = simd_f32x8.splat(np.float32(0.0))
    a0, a1, a2, a3 = zero, zero, zero, zero
    for d in range(0, size, LANES):
        a = simd_f32x8.load(query + d)
        a0 = simd_f32x8.fused(a, simd_f32x8.load(key + d), a0)
        a1 = simd_f32x8.fused(a, simd_f32x8.load(key + stride + d), a1)
        a2 = simd_f32x8.fused(a, simd_f32x8.load(key + 2 * stride + d), a2)
        a3 = simd_f32x8.fused(a, simd_f32x8.load(key + 3 * stride + d), a3)
    simd_f32x8.store_sums(out, a0, a1, a2, a3)


@inlined
def cap(softcap: np.float32, first: int, last: int) -> None:
    """Replace scores by softcap * tanh(score / softcap)."""
    cap, one, zero = (
        simd_f32x8.splat(softcap),
        simd_f32x8.splat(np.float32(1.0)),
        simd_f32x8.splat(np.float32(0.0)),
    )
    for address in range(first, last, LANES):
        part = simd_f32x8.divide(simd_f32x8.load(address), cap)
        size = simd_f32x8.larger(part, simd_f32x8.subtract(zero, part))
        shrunk = simd_f32x8.exp(simd_f32x8.subtract(zero, simd_f32x8.add(size, size)))
        tanh = simd_f32x8.divide(simd_f32x8.subtract(one, shrunk), simd_f32x8.add(one, shrunk))
        simd_f32x8.store(address, simd_f32x8.multiply(cap, simd_f32x8.with_sign(tanh, part)))


_add, _add_vector = (
    softmax_weighted_sum.add_weighted(softmax_weighted_sum.VECTORS),
    softmax_weighted_sum.add_weighted(1),
)
_VECTORS = softmax_weighted_sum.VECTORS * softmax_weighted_sum.STEP


@inlined
def add_values(
    weights: int,
    values: int,
    stride: int,
    count: int,
    sums: int,
    size: int,
    queries: int,
    halves: bool,
) -> None:
    """Add `count` values to the sums of up to four queries.

    Args:
        weights: where the addresses of the queries' weights lie.
        size: of the sums of a query.
        halves: values are in bfloat16, and sums a multiple of 16 of them.
    """
    whole, vectors, shift = (
        size // _VECTORS * _VECTORS,
        size // softmax_weighted_sum.STEP * softmax_weighted_sum.STEP,
        1 if halves else 0,
    )
    for d in range(0, whole, _VECTORS):
        _add(queries, shift, weights, values + (d >> shift), stride, count, sums + d, size)
    for d in range(whole, vectors, softmax_weighted_sum.STEP):
        _add_vector(queries, shift, weights, values + (d >> shift), stride, count, sums + d, size)
    for query in range(queries):
        for d in range(vectors, size, LANES):
            add_lanes(
                load_int64(weights + 8 * query), values + d, stride, count, sums + query * size + d
            )


@inlined
def add_lanes(weight: int, value: int, stride: int, count: int, target: int) -> None:
    """Add eight dims of `count` values to the sums of one query."""
    a = simd_f32x8.load(target)
    for j in range(0, count * FLOAT, FLOAT):
        a = simd_f32x8.fused(
            simd_f32x8.splat(simd_f32x8.load_float(weight + j)), simd_f32x8.load(value), a
        )
        value += stride
    simd_f32x8.store(target, a)
