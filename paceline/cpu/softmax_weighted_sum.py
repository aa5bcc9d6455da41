"""Weighted sums of rows and exponentials of rows, sixteen numbers at a time, in compiled code: the
inner loops of attention.

Each number of a sum is made by itself: a fused multiply-add for each row, in their order; so its
bits do not depend on how many are made at once. Processors without vectors of sixteen numbers take
two of eight.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types

from paceline.cpu.simd_f32x8 import (
    WIDTH,
    exponential,
    fold,
    larger_of,
    multiply_add,
    operation,
    pick,
    pointer,
    spread,
    total_of,
    widen,
)
from paceline.util.machine import instruction_flags, on_x86

STEP = 64  # bytes of float32 in a vector
_COUNT = STEP // 4
_INDEX, _FLOAT = ir.IntType(64), ir.FloatType()
_NUMBERS, _EIGHT = ir.VectorType(_FLOAT, _COUNT), ir.VectorType(_FLOAT, WIDTH)
_HALVES = ir.VectorType(ir.IntType(16), _COUNT)
QUERIES = 4  # whose sums are made together at most
# Vectors of a row whose sums are in registers, of four rows of weights: there are 32 registers of
# this size, or 16 of half of it.
VECTORS = 4 if on_x86() and "avx512f" in instruction_flags() else 1


def _behind(builder: Any, address: Any, index: Any, size: Any) -> Any:
    return builder.add(address, builder.mul(index, size))


def _constant(number: int) -> Any:
    return ir.Constant(_INDEX, number)


def _load(builder: Any, address: Any, kind: Any = _NUMBERS) -> Any:
    return builder.load(pointer(builder, address, kind), align=2)


def _store(builder: Any, address: Any, value: Any) -> None:
    builder.store(value, pointer(builder, address, value.type), align=4)


def _load_halves(builder: Any, address: Any) -> Any:
    """Read numbers in bfloat16."""
    return widen(builder, _load(builder, address, _HALVES))


def add_weighted(vectors: int) -> Any:
    """Return a function of compiled code: adds rows, each times its weight, to the sums of up to
    `QUERIES` queries.

    Its arguments: how many queries; 1 if rows are in bfloat16, else 0; where the addresses of the
    weights of each query lie; the address of the rows, and bytes from one to the next; how many;
    that of the sums, and bytes from a query's to the next's.

    Args:
        vectors: sixteen numbers of a row each.
    """

    def emit(builder: Any, queries: Any, halves: Any, *given: Any) -> None:
        for number in range(1, QUERIES + 1):
            for kind in (0, 1):
                asked = [
                    builder.icmp_signed("==", one, _constant(other))
                    for one, other in ((queries, number), (halves, kind))
                ]
                with builder.if_then(builder.and_(*asked)):
                    _add_rows(builder, number, vectors, bool(kind), *given)

    return operation(types.void, (types.int64,) * 8, emit)


def _add_rows(
    builder: Any,
    queries: int,
    vectors: int,
    halves: bool,
    weights: Any,
    rows: Any,
    stride: Any,
    count: Any,
    sums: Any,
    size: Any,
) -> None:
    places = [
        _load(builder, builder.add(weights, _constant(8 * query)), _INDEX)
        for query in range(queries)
    ]
    targets = [
        [
            builder.add(_behind(builder, sums, _constant(query), size), _constant(STEP * part))
            for part in range(vectors)
        ]
        for query in range(queries)
    ]
    kept = [
        [cgutils.alloca_once_value(builder, _load(builder, at)) for at in parts]
        for parts in targets
    ]
    with cgutils.for_range(builder, count, intp=_INDEX) as loop:
        row = _behind(builder, rows, loop.index, stride)
        read, width = (_load_halves, STEP // 2) if halves else (_load, STEP)
        values = [
            read(builder, builder.add(row, _constant(width * part))) for part in range(vectors)
        ]
        for place, parts in zip(places, kept, strict=True):
            weight = spread(
                builder,
                _load(builder, _behind(builder, place, loop.index, _constant(4)), _FLOAT),
                _COUNT,
            )
            for value, total in zip(values, parts, strict=True):
                builder.store(multiply_add(builder, weight, value, builder.load(total)), total)
    for parts, totals in zip(targets, kept, strict=True):
        for at, total in zip(parts, totals, strict=True):
            _store(builder, at, builder.load(total))


def _find_largest(builder: Any, numbers: Any, count: Any) -> Any:
    largest = cgutils.alloca_once_value(builder, ir.Constant(_NUMBERS, [-np.inf] * _COUNT))
    with cgutils.for_range(builder, count, intp=_INDEX) as loop:
        one = _load(builder, _behind(builder, numbers, loop.index, _constant(STEP)))
        builder.store(larger_of(builder, builder.load(largest), one), largest)
    return fold(builder, builder.load(largest), larger_of)


def _weigh(builder: Any, numbers: Any, count: Any, largest: Any) -> Any:
    """Sums of eight lanes: the same as where eight numbers are taken at a time."""
    total = cgutils.alloca_once_value(builder, ir.Constant(_EIGHT, [0.0] * WIDTH))
    most = spread(builder, largest, _COUNT)
    with cgutils.for_range(builder, count, intp=_INDEX) as loop:
        place = _behind(builder, numbers, loop.index, _constant(STEP))
        weights = exponential(builder, builder.fsub(_load(builder, place), most))
        _store(builder, place, weights)
        for first in (0, WIDTH):
            eight = pick(builder, weights, weights, list(range(first, first + WIDTH)))
            builder.store(builder.fadd(builder.load(total), eight), total)
    return total_of(builder, builder.load(total))


def _scale(builder: Any, source: Any, target: Any, count: Any, factor: Any) -> None:
    factors = spread(builder, factor, _COUNT)
    with cgutils.for_range(builder, count, intp=_INDEX) as loop:
        place = _behind(builder, source, loop.index, _constant(STEP))
        _store(
            builder,
            _behind(builder, target, loop.index, _constant(STEP)),
            builder.fmul(_load(builder, place), factors),
        )


# The largest of some vectors of numbers: address, how many vectors.
find_largest = operation(types.float32, (types.int64,) * 2, _find_largest)
# Replace numbers by the exponentials of their difference to the largest, and return their sum: lane
# l of eight adds up those at l, l + 8, ...; then lanes l and l + 4 are added, l and l + 2, 0 and 1.
# Address, how many vectors, the largest.
weigh = operation(types.float32, (types.int64, types.int64, types.float32), _weigh)
# Multiply numbers: where they lie, where they go, how many vectors, the factor.
scale = operation(types.void, (types.int64,) * 3 + (types.float32,), _scale)
