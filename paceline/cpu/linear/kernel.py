"""Products of rows with a weight, compiled: a row's numbers depend on that row alone, to the last
bit.

Verification multiplies a handful of rows with each weight. The libraries' kernels are made for one
row or for hundreds: between, they read a weight at a fraction of the memory's speed, or, in half
precision on a processor without instructions for it, repeat all their work for every row. Here a
weight is read once, four outputs at a time, the next four being fetched meanwhile.

All sums are in float32, and in this order: lane l of eight adds up the products of the numbers l, l
+ 8, ... of row and weight, each by a fused multiply-add; then lanes l and l + 4 are added, l and l
+ 2, 0 and 1. How many rows and outputs are computed together is a matter of registers.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import torch

from paceline.cpu import simd_f32x8
from paceline.cpu.attention.tiles import (
    BFLOAT16,
    FLOAT,
    FLOAT32,
    LANES,
    LINE,
    address,
    load_lanes,
    load_row,
)
from paceline.cpu.thread_team import TeamJob
from paceline.util.compiled import as_pointer, inlined, record_dtype, take_number

_SHARE = 1 << 21  # multiply-adds that are worth waking a thread for
_OUTPUTS = 4  # at a time: their sums fill one store, and with three rows the registers
TASK = 64  # outputs that a thread takes at a time
_CACHE = 30_000  # bytes of the nearest cache that rows and weights may fill
_LEAST_BLOCK = 6  # rows that share a reading of the weights at least
_DIRECT = 3  # rows for which half precision is converted as it is used; for more, once for all


class Product:
    """What a product is given: addresses, and sizes in numbers."""

    rows: int  # [count, inner]
    weight: int  # [outer, inner]
    bias: int  # float32 [outer]; 0 without
    out: int  # [count, outer]
    kind: int  # how the numbers of rows and weight are stored, see `tiles`
    out_kind: int  # likewise of `out`, float32 or bfloat16
    count: int
    inner: int  # multiples of 8; of more where a kernel says so
    outer: int
    taken: int  # outputs, in tasks, that some thread has taken; 0 at first


PRODUCT = record_dtype(Product)
_TAKEN = PRODUCT.fields["taken"][1]


def helpers_for(multiply_adds: int) -> int:
    """Return how many threads are worth waking for so much work."""
    return (
        0 if multiply_adds < _SHARE else min(torch.get_num_threads() - 1, multiply_adds // _SHARE)
    )


@inlined
def take_task(place: int) -> Any:
    """Return the first output of the next task of the `Product` that lies at a place."""
    return take_number(place + _TAKEN) * TASK


def _multiply(place: int) -> int:
    """Multiply until no output is left. `place`: where the `Product` lies."""
    product = numba.carray(as_pointer(place), 1, PRODUCT)[0]
    kind, count, inner, outer = product.kind, product.count, product.inner, product.outer
    first = take_task(place)
    if first >= outer:
        return 0
    block = max(_LEAST_BLOCK, (_CACHE // (inner * FLOAT) - _OUTPUTS) // 3 * 3)
    few = count <= 2 * block
    scratch = np.empty((_OUTPUTS if few else TASK) * inner, dtype=np.float32)
    sums = np.empty(count * TASK, dtype=np.float32)
    wide = np.empty(0 if kind == FLOAT32 else count * inner, dtype=np.float32)
    if kind != FLOAT32:
        load_row(kind, product.rows, address(wide), count * inner)
    done = 0
    while first < outer:
        width = min(TASK, outer - first)
        # here, since an array lives until its last use
        read = product.rows if kind == FLOAT32 else address(wide)
        if few:
            _multiply_few(
                read,
                product.weight,
                address(sums),
                address(scratch),
                kind,
                count,
                inner,
                first,
                width,
                outer,
            )
        else:
            _multiply_many(
                read,
                product.weight,
                address(sums),
                address(scratch),
                kind,
                count,
                inner,
                first,
                width,
                block,
            )
        write_out(
            address(sums), product.bias, product.out, product.out_kind, count, first, width, outer
        )
        done += 1
        first = take_task(place)
    return done


multiply = TeamJob(_multiply, PRODUCT)


@inlined
def _multiply_few(
    rows: int,
    weight: int,
    sums: int,
    scratch: int,
    kind: int,
    count: int,
    inner: int,
    first: int,
    width: int,
    outer: int,
) -> None:
    """All rows with the weights of four outputs, while those of the next four are fetched."""
    stride = inner * (FLOAT if kind == FLOAT32 else FLOAT // 2)
    for output in range(first, first + width, _OUTPUTS):
        place, target = weight + output * stride, sums + (output - first) * FLOAT
        ahead = _OUTPUTS * stride if output + _OUTPUTS < outer else 0
        if kind == FLOAT32:
            _multiply_rows(FLOAT32, rows, place, stride, target, count, inner, ahead)
        elif kind == BFLOAT16 and count <= _DIRECT:
            _multiply_rows(BFLOAT16, rows, place, stride, target, count, inner, ahead)
        else:
            load_row(kind, place, scratch, _OUTPUTS * inner)
            for line in range(place + ahead, place + 2 * ahead, LINE):
                simd_f32x8.prefetch(line)
            _multiply_rows(FLOAT32, rows, scratch, inner * FLOAT, target, count, inner, 0)


@inlined
def _multiply_many(
    rows: int,
    weight: int,
    sums: int,
    scratch: int,
    kind: int,
    count: int,
    inner: int,
    first: int,
    width: int,
    block: int,
) -> None:
    """As many rows as stay in the nearest cache with the weights of four outputs, and all
    outputs of the task with these.
    """
    size = inner * FLOAT
    if kind != FLOAT32:
        load_row(kind, weight + first * size // 2, scratch, width * inner)
    source = weight + first * size if kind == FLOAT32 else scratch
    for row in range(0, count, block):
        for output in range(0, width, _OUTPUTS):
            target = sums + (row * TASK + output) * FLOAT
            _multiply_rows(
                FLOAT32,
                rows + row * size,
                source + output * size,
                size,
                target,
                min(block, count - row),
                inner,
                0,
            )


@inlined
def write_out(
    sums: int, bias: int, out: int, out_kind: int, count: int, first: int, width: int, outer: int
) -> None:
    """Write the sums of `width` outputs, [count, TASK], to their places, with the bias."""
    for row in range(count):
        for output in range(0, width, simd_f32x8.WIDTH):
            total = simd_f32x8.load(sums + (row * TASK + output) * FLOAT)
            if bias:
                total = simd_f32x8.add(total, simd_f32x8.load(bias + (first + output) * FLOAT))
            place = row * outer + first + output
            if out_kind == BFLOAT16:
                simd_f32x8.store_bfloat16(out + place * FLOAT // 2, total)
            else:
                simd_f32x8.store(out + place * FLOAT, total)


@inlined
def _multiply_rows(
    kind: int, rows: int, weight: int, stride: int, out: int, count: int, inner: int, ahead: int
) -> None:
    size, step = inner * FLOAT, TASK * FLOAT
    done = 0
    while done + 3 <= count:
        _three(kind, rows + done * size, size, weight, stride, out + done * step, step, ahead)
        ahead = 0  # it is on its way
        done += 3
    if count - done == 2:
        _two(kind, rows + done * size, size, weight, stride, out + done * step, step, ahead)
    elif count - done == 1:
        _one(kind, rows + done * size, size, weight, stride, out + done * step, ahead)


@inlined
def _fetch(place: int, stride: int, offset: int) -> None:
    """Have the same part of the next four outputs' weights brought near, line by line."""
    if offset % LINE == 0:
        simd_f32x8.prefetch(place)
        simd_f32x8.prefetch(place + stride)
        simd_f32x8.prefetch(place + 2 * stride)
        simd_f32x8.prefetch(place + 3 * stride)


@inlined
def _one(kind: int, rows: int, size: int, weight: int, stride: int, out: int, ahead: int) -> None:
    zero = simd_f32x8.splat(np.float32(0.0))
    a0, a1, a2, a3 = zero, zero, zero, zero
    for d in range(0, size, LANES):
        offset = d if kind == FLOAT32 else d // 2
        place = weight + offset
        if ahead:
            _fetch(place + ahead, stride, offset)
        a = simd_f32x8.load(rows + d)
        a0 = simd_f32x8.fused(a, load_lanes(kind, place), a0)
        a1 = simd_f32x8.fused(a, load_lanes(kind, place + stride), a1)
        a2 = simd_f32x8.fused(a, load_lanes(kind, place + 2 * stride), a2)
        a3 = simd_f32x8.fused(a, load_lanes(kind, place + 3 * stride), a3)
    simd_f32x8.store_sums(out, a0, a1, a2, a3)


@inlined
def _two(
    kind: int, rows: int, size: int, weight: int, stride: int, out: int, step: int, ahead: int
) -> None:
    zero = simd_f32x8.splat(np.float32(0.0))
    a0, a1, a2, a3 = zero, zero, zero, zero
    b0, b1, b2, b3 = zero, zero, zero, zero
    for d in range(0, size, LANES):
        offset = d if kind == FLOAT32 else d // 2
        place = weight + offset
        if ahead:
            _fetch(place + ahead, stride, offset)
        a, b = simd_f32x8.load(rows + d), simd_f32x8.load(rows + size + d)
        w = load_lanes(kind, place)
        a0, b0 = simd_f32x8.fused(a, w, a0), simd_f32x8.fused(b, w, b0)
        w = load_lanes(kind, place + stride)
        a1, b1 = simd_f32x8.fused(a, w, a1), simd_f32x8.fused(b, w, b1)
        w = load_lanes(kind, place + 2 * stride)
        a2, b2 = simd_f32x8.fused(a, w, a2), simd_f32x8.fused(b, w, b2)
        w = load_lanes(kind, place + 3 * stride)
        a3, b3 = simd_f32x8.fused(a, w, a3), simd_f32x8.fused(b, w, b3)
    simd_f32x8.store_sums(out, a0, a1, a2, a3)
    simd_f32x8.store_sums(out + step, b0, b1, b2, b3)


@inlined
def _three(
    kind: int, rows: int, size: int, weight: int, stride: int, out: int, step: int, ahead: int
) -> None:
    zero = simd_f32x8.splat(np.float32(0.0))
    a0, a1, a2, a3 = zero, zero, zero, zero
    b0, b1, b2, b3 = zero, zero, zero, zero
    c0, c1, c2, c3 = zero, zero, zero, zero
    for d in range(0, size, LANES):
        offset = d if kind == FLOAT32 else d // 2
        place = weight + offset
        if ahead:
            _fetch(place + ahead, stride, offset)
        a, b, c = (
            simd_f32x8.load(rows + d),
            simd_f32x8.load(rows + size + d),
            simd_f32x8.load(rows + 2 * size + d),
        )
        w = load_lanes(kind, place)
        a0, b0, c0 = (
            simd_f32x8.fused(a, w, a0),
            simd_f32x8.fused(b, w, b0),
            simd_f32x8.fused(c, w, c0),
        )
        w = load_lanes(kind, place + stride)
        a1, b1, c1 = (
            simd_f32x8.fused(a, w, a1),
            simd_f32x8.fused(b, w, b1),
            simd_f32x8.fused(c, w, c1),
        )
        w = load_lanes(kind, place + 2 * stride)
        a2, b2, c2 = (
            simd_f32x8.fused(a, w, a2),
            simd_f32x8.fused(b, w, b2),
            simd_f32x8.fused(c, w, c2),
        )
        w = load_lanes(kind, place + 3 * stride)
        a3, b3, c3 = (
            simd_f32x8.fused(a, w, a3),
            simd_f32x8.fused(b, w, b3),
            simd_f32x8.fused(c, w, c3),
        )
    simd_f32x8.store_sums(out, a0, a1, a2, a3)
    simd_f32x8.store_sums(out + step, b0, b1, b2, b3)
    simd_f32x8.store_sums(out + 2 * step, c0, c1, c2, c3)
