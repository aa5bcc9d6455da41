"""The inner loops of attention by position: products of a few queries with a few keys, weighted sums of values, exponentials.

Rows of float32 lie at addresses, a stride of so many bytes apart. Sizes are in bytes, multiples of 32. How many rows a loop takes
at a time is a matter of registers; every number is made of the same operations in the same order in all of them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.common import lanes, weighted
from paceline.common.compiled import inlined, load_int64

FLOAT = 4  # bytes
LANES = FLOAT * lanes.WIDTH
LINE = 64  # bytes that memory gives at once
FLOAT32, BFLOAT16, FLOAT16 = 0, 1, 2  # how numbers are stored


@inlined
def address(array: NDArray[Any]) -> Any:
    """Where an array lies, as a signed number."""
    return np.int64(array.ctypes.data)  # unsigned otherwise, and in a sum with a signed one float64


@inlined
def aligned(store: NDArray[np.float32]) -> Any:
    """Where in an array a line of the cache begins: a vector, or a row of a tile, is then read from one line."""
    return (address(store) + LINE - 1) // LINE * LINE


@inlined
def load_lanes(kind: int, place: int) -> Any:
    """Read eight numbers as float32."""
    if kind == FLOAT32:
        return lanes.load(place)
    if kind == BFLOAT16:
        return lanes.load_bfloat16(place)
    return lanes.load_float16(place)


@inlined
def load_row(kind: int, source: int, target: int, dim: int) -> None:
    """Read `dim` numbers as float32."""
    if kind == BFLOAT16:
        for d in range(0, dim, 8):
            lanes.store(target + 4 * d, lanes.load_bfloat16(source + 2 * d))
    elif kind == FLOAT16:
        for d in range(0, dim, 8):
            lanes.store(target + 4 * d, lanes.load_float16(source + 2 * d))
    else:
        for d in range(0, dim, 8):
            lanes.store(target + 4 * d, lanes.load(source + 4 * d))


@inlined
def multiply_two(query: int, size: int, key: int, stride: int, out: int, row: int) -> None:
    """Scores of two adjacent queries and four keys."""
    zero = lanes.splat(np.float32(0.0))
    a0, a1, a2, a3 = zero, zero, zero, zero
    b0, b1, b2, b3 = zero, zero, zero, zero
    for d in range(0, size, LANES):
        a, b = lanes.load(query + d), lanes.load(query + size + d)
        k = lanes.load(key + d)
        a0, b0 = lanes.fused(a, k, a0), lanes.fused(b, k, b0)
        k = lanes.load(key + stride + d)
        a1, b1 = lanes.fused(a, k, a1), lanes.fused(b, k, b1)
        k = lanes.load(key + 2 * stride + d)
        a2, b2 = lanes.fused(a, k, a2), lanes.fused(b, k, b2)
        k = lanes.load(key + 3 * stride + d)
        a3, b3 = lanes.fused(a, k, a3), lanes.fused(b, k, b3)
    lanes.store_sums(out, a0, a1, a2, a3)
    lanes.store_sums(out + row, b0, b1, b2, b3)


@inlined
def multiply_one(query: int, size: int, key: int, stride: int, out: int) -> None:
    """Scores of one query and four keys."""
    zero = lanes.splat(np.float32(0.0))
    a0, a1, a2, a3 = zero, zero, zero, zero
    for d in range(0, size, LANES):
        a = lanes.load(query + d)
        a0 = lanes.fused(a, lanes.load(key + d), a0)
        a1 = lanes.fused(a, lanes.load(key + stride + d), a1)
        a2 = lanes.fused(a, lanes.load(key + 2 * stride + d), a2)
        a3 = lanes.fused(a, lanes.load(key + 3 * stride + d), a3)
    lanes.store_sums(out, a0, a1, a2, a3)


@inlined
def cap(softcap: np.float32, first: int, last: int) -> None:
    """Replace scores by softcap * tanh(score / softcap)."""
    cap, one, zero = lanes.splat(softcap), lanes.splat(np.float32(1.0)), lanes.splat(np.float32(0.0))
    for address in range(first, last, LANES):
        part = lanes.divide(lanes.load(address), cap)
        size = lanes.larger(part, lanes.subtract(zero, part))
        shrunk = lanes.exp(lanes.subtract(zero, lanes.add(size, size)))
        tanh = lanes.divide(lanes.subtract(one, shrunk), lanes.add(one, shrunk))
        lanes.store(address, lanes.multiply(cap, lanes.with_sign(tanh, part)))


_add, _add_vector = weighted.add_weighted(weighted.VECTORS), weighted.add_weighted(1)
_VECTORS = weighted.VECTORS * weighted.STEP


@inlined
def add_values(weights: int, values: int, stride: int, count: int, sums: int, size: int, queries: int, halves: bool) -> None:
    """Add `count` values to the sums of up to four queries.

    Args:
        weights: where the addresses of the queries' weights lie.
        size: of the sums of a query.
        halves: values are in bfloat16, and sums a multiple of 16 of them.
    """
    whole, vectors, shift = size // _VECTORS * _VECTORS, size // weighted.STEP * weighted.STEP, 1 if halves else 0
    for d in range(0, whole, _VECTORS):
        _add(queries, shift, weights, values + (d >> shift), stride, count, sums + d, size)
    for d in range(whole, vectors, weighted.STEP):
        _add_vector(queries, shift, weights, values + (d >> shift), stride, count, sums + d, size)
    for query in range(queries):
        for d in range(vectors, size, LANES):
            add_lanes(load_int64(weights + 8 * query), values + d, stride, count, sums + query * size + d)


@inlined
def add_lanes(weight: int, value: int, stride: int, count: int, target: int) -> None:
    """Add eight dims of `count` values to the sums of one query."""
    a = lanes.load(target)
    for j in range(0, count * FLOAT, FLOAT):
        a = lanes.fused(lanes.splat(lanes.load_float(weight + j)), lanes.load(value), a)
        value += stride
    lanes.store(target, a)
