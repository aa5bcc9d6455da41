"""The inner loops of attention by position: products of a few queries with a few keys, weighted sums of values, exponentials.

Rows of float32 lie at addresses, a stride of so many bytes apart. Sizes are in bytes, multiples of 32. How many rows a loop takes
at a time is a matter of registers; every number is made of the same operations in the same order in all of them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.common import lanes
from paceline.common.compiled import inlined

FLOAT = 4  # bytes
LANES = FLOAT * lanes.WIDTH
LINE = 64  # bytes that memory gives at once
FLOAT32, BFLOAT16, FLOAT16 = 0, 1, 2  # how numbers are stored


@inlined
def address(array: NDArray[np.float32]) -> Any:
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


@inlined
def add_four(w0: int, w1: int, w2: int, w3: int, values: int, stride: int, count: int, target: int, size: int) -> None:
    """Add `count` values to the sums of four adjacent queries."""
    whole = size // (2 * LANES) * 2 * LANES
    for d in range(0, whole, 2 * LANES):
        at0, at1, at2, at3 = target + d, target + size + d, target + 2 * size + d, target + 3 * size + d
        a0, a1 = lanes.load(at0), lanes.load(at0 + LANES)
        b0, b1 = lanes.load(at1), lanes.load(at1 + LANES)
        c0, c1 = lanes.load(at2), lanes.load(at2 + LANES)
        d0, d1 = lanes.load(at3), lanes.load(at3 + LANES)
        value = values + d
        for j in range(0, count * FLOAT, FLOAT):
            v0, v1 = lanes.load(value), lanes.load(value + LANES)
            w = lanes.splat(lanes.load_float(w0 + j))
            a0, a1 = lanes.fused(w, v0, a0), lanes.fused(w, v1, a1)
            w = lanes.splat(lanes.load_float(w1 + j))
            b0, b1 = lanes.fused(w, v0, b0), lanes.fused(w, v1, b1)
            w = lanes.splat(lanes.load_float(w2 + j))
            c0, c1 = lanes.fused(w, v0, c0), lanes.fused(w, v1, c1)
            w = lanes.splat(lanes.load_float(w3 + j))
            d0, d1 = lanes.fused(w, v0, d0), lanes.fused(w, v1, d1)
            value += stride
        lanes.store(at0, a0)
        lanes.store(at0 + LANES, a1)
        lanes.store(at1, b0)
        lanes.store(at1 + LANES, b1)
        lanes.store(at2, c0)
        lanes.store(at2 + LANES, c1)
        lanes.store(at3, d0)
        lanes.store(at3 + LANES, d1)
    if whole < size:
        add_lanes(w0, values + whole, stride, count, target + whole)
        add_lanes(w1, values + whole, stride, count, target + size + whole)
        add_lanes(w2, values + whole, stride, count, target + 2 * size + whole)
        add_lanes(w3, values + whole, stride, count, target + 3 * size + whole)


@inlined
def add_one(weight: int, values: int, stride: int, count: int, target: int, size: int) -> None:
    """Add `count` values to the sums of one query."""
    whole = size // (8 * LANES) * 8 * LANES
    for d in range(0, whole, 8 * LANES):
        at = target + d
        a0, a1, a2, a3 = lanes.load(at), lanes.load(at + LANES), lanes.load(at + 2 * LANES), lanes.load(at + 3 * LANES)
        at += 4 * LANES
        a4, a5, a6, a7 = lanes.load(at), lanes.load(at + LANES), lanes.load(at + 2 * LANES), lanes.load(at + 3 * LANES)
        value = values + d
        for j in range(0, count * FLOAT, FLOAT):
            w = lanes.splat(lanes.load_float(weight + j))
            a0, a1 = lanes.fused(w, lanes.load(value), a0), lanes.fused(w, lanes.load(value + LANES), a1)
            a2, a3 = lanes.fused(w, lanes.load(value + 2 * LANES), a2), lanes.fused(w, lanes.load(value + 3 * LANES), a3)
            a4, a5 = lanes.fused(w, lanes.load(value + 4 * LANES), a4), lanes.fused(w, lanes.load(value + 5 * LANES), a5)
            a6, a7 = lanes.fused(w, lanes.load(value + 6 * LANES), a6), lanes.fused(w, lanes.load(value + 7 * LANES), a7)
            value += stride
        lanes.store(at, a4)
        lanes.store(at + LANES, a5)
        lanes.store(at + 2 * LANES, a6)
        lanes.store(at + 3 * LANES, a7)
        at -= 4 * LANES
        lanes.store(at, a0)
        lanes.store(at + LANES, a1)
        lanes.store(at + 2 * LANES, a2)
        lanes.store(at + 3 * LANES, a3)
    for d in range(whole, size, LANES):
        add_lanes(weight, values + d, stride, count, target + d)


@inlined
def add_lanes(weight: int, value: int, stride: int, count: int, target: int) -> None:
    """Add eight dims of `count` values to the sums of one query."""
    a = lanes.load(target)
    for j in range(0, count * FLOAT, FLOAT):
        a = lanes.fused(lanes.splat(lanes.load_float(weight + j)), lanes.load(value), a)
        value += stride
    lanes.store(target, a)
