"""Emit attention's inner loops: weighted sums of rows, and softmax weights.

The loops use vectors of sixteen elements. On a processor whose vectors have only eight elements,
the compiler splits each vector in two. Each element of a weighted sum is the result of one fused
multiply-add per row, in the order of the rows. The result therefore does not depend on how many
sums are computed together.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types

from paceline.cpu.emit import (
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
from paceline.cpu.memory import FLOAT_BYTES
from paceline.cpu.simd_f32x8 import WIDTH
from paceline.util.machine import instruction_flags, on_x86

_COUNT = 16  # lanes in a vector
STEP = _COUNT * FLOAT_BYTES  # bytes in a float32 vector
_INDEX, _FLOAT = ir.IntType(64), ir.FloatType()
_NUMBERS, _EIGHT = ir.VectorType(_FLOAT, _COUNT), ir.VectorType(_FLOAT, WIDTH)
_HALVES = ir.VectorType(ir.IntType(16), _COUNT)
QUERIES = 4  # maximum number of queries whose sums are computed together
# Number of vectors per row whose sums stay in registers, with four queries. AVX-512 has 32
# registers of this size; AVX2 has 16 registers of half the size.
VECTORS = 4 if on_x86() and "avx512f" in instruction_flags() else 1


def _at(builder: Any, address: Any, index: Any, size: Any) -> Any:
    return builder.add(address, builder.mul(index, size))


def _constant(number: int) -> Any:
    return ir.Constant(_INDEX, number)


def _load(builder: Any, address: Any, kind: Any = _NUMBERS) -> Any:
    return builder.load(pointer(builder, address, kind), align=2)


def _store(builder: Any, address: Any, value: Any) -> None:
    builder.store(value, pointer(builder, address, value.type), align=4)


def _load_halves(builder: Any, address: Any) -> Any:
    """Emit instructions that load sixteen bfloat16 numbers as float32."""
    return widen(builder, _load(builder, address, _HALVES))


def add_weighted(vectors: int) -> Any:
    """Return an operation that adds weighted rows to the sums of several queries.

    Arguments of the operation (distances are in bytes):
        queries: Number of queries, 1 to `QUERIES`.
        halves: 1 if the rows are in bfloat16, 0 if they are in float32.
        weights: Address of an array that contains the address of each query's float32 weights.
        rows: Address of the rows.
        stride: Distance between consecutive rows.
        count: Number of rows, which is also the number of weights per query.
        sums: Address of the float32 sums, to which the weighted rows are added.
        size: Distance between the sums of consecutive queries.

    Args:
        vectors: Number of vectors (sixteen numbers each) to add per row.
    """

    def emit(builder: Any, queries: Any, halves: Any, *operands: Any) -> None:
        for number in range(1, QUERIES + 1):
            for is_half in (False, True):
                matches = [
                    builder.icmp_signed("==", value, _constant(expected))
                    for value, expected in ((queries, number), (halves, int(is_half)))
                ]
                with builder.if_then(builder.and_(*matches)):
                    _add_rows(builder, number, vectors, is_half, _SumOperands(*operands))

    return operation(types.void, (types.int64,) * 8, emit)


class _SumOperands(NamedTuple):
    """The arguments of an `add_weighted` operation, except the first two."""

    weights: Any
    rows: Any
    stride: Any
    count: Any
    sums: Any
    size: Any


def _add_rows(
    builder: Any,
    queries: int,
    vectors: int,
    halves: bool,
    operands: _SumOperands,
) -> None:
    weights, rows, stride, count, sums, size = operands
    weight_rows = [
        _load(builder, builder.add(weights, _constant(8 * query)), _INDEX)
        for query in range(queries)
    ]
    targets = [
        [
            builder.add(_at(builder, sums, _constant(query), size), _constant(STEP * part))
            for part in range(vectors)
        ]
        for query in range(queries)
    ]
    totals = [
        [cgutils.alloca_once_value(builder, _load(builder, target)) for target in query_targets]
        for query_targets in targets
    ]
    with cgutils.for_range(builder, count, intp=_INDEX) as loop:
        row = _at(builder, rows, loop.index, stride)
        read, width = (_load_halves, STEP // 2) if halves else (_load, STEP)
        values = [
            read(builder, builder.add(row, _constant(width * part))) for part in range(vectors)
        ]
        for weight_row, query_totals in zip(weight_rows, totals, strict=True):
            source = _at(builder, weight_row, loop.index, _constant(FLOAT_BYTES))
            weight = spread(builder, _load(builder, source, _FLOAT), _COUNT)
            for value, total in zip(values, query_totals, strict=True):
                builder.store(multiply_add(builder, weight, value, builder.load(total)), total)
    for query_targets, query_totals in zip(targets, totals, strict=True):
        for target, total in zip(query_targets, query_totals, strict=True):
            _store(builder, target, builder.load(total))


def _find_largest(builder: Any, numbers: Any, count: Any) -> Any:
    largest = cgutils.alloca_once_value(builder, ir.Constant(_NUMBERS, [-np.inf] * _COUNT))
    with cgutils.for_range(builder, count, intp=_INDEX) as loop:
        vector = _load(builder, _at(builder, numbers, loop.index, _constant(STEP)))
        builder.store(larger_of(builder, builder.load(largest), vector), largest)
    return fold(builder, builder.load(largest), larger_of)


def _weigh(builder: Any, numbers: Any, count: Any, largest: Any) -> Any:
    # Sum in eight lanes on every processor, so that the order does not depend on the vector size.
    total = cgutils.alloca_once_value(builder, ir.Constant(_EIGHT, [0.0] * WIDTH))
    maximum = spread(builder, largest, _COUNT)
    with cgutils.for_range(builder, count, intp=_INDEX) as loop:
        vector = _at(builder, numbers, loop.index, _constant(STEP))
        weights = exponential(builder, builder.fsub(_load(builder, vector), maximum))
        _store(builder, vector, weights)
        for first in (0, WIDTH):
            eight = pick(builder, weights, weights, list(range(first, first + WIDTH)))
            builder.store(builder.fadd(builder.load(total), eight), total)
    return total_of(builder, builder.load(total))


def _scale(builder: Any, source: Any, target: Any, count: Any, factor: Any) -> None:
    factors = spread(builder, factor, _COUNT)
    with cgutils.for_range(builder, count, intp=_INDEX) as loop:
        vector = _load(builder, _at(builder, source, loop.index, _constant(STEP)))
        _store(
            builder,
            _at(builder, target, loop.index, _constant(STEP)),
            builder.fmul(vector, factors),
        )


# Finds the largest number. Arguments: address, number of vectors.
find_largest = operation(types.float32, (types.int64,) * 2, _find_largest)
# Replaces each number by exp(number - largest), and returns the sum of the exponentials. Lane l of
# eight sums the exponentials at l, l + 8, and so on. The lanes are then added in pairs: l and
# l + 4, l and l + 2, and finally 0 and 1.
# Arguments: address, number of vectors, largest number.
weigh = operation(types.float32, (types.int64, types.int64, types.float32), _weigh)
# Multiplies numbers by a factor. Arguments: source, target, number of vectors, factor.
scale = operation(types.void, (types.int64,) * 3 + (types.float32,), _scale)
