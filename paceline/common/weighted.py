"""Weighted sums of rows and exponentials of rows, sixteen numbers at a time, in compiled code: the inner loops of attention.

Each number of a sum is made by itself: a fused multiply-add for each row, in their order; so its bits do not depend on how many
are made at once. Processors without vectors of sixteen numbers take two of eight.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types

from paceline.common.lanes import WIDTH, exponential, operation, pick, pointer
from paceline.common.machine import instruction_flags, on_x86

STEP = 64  # bytes of float32 in a vector
_COUNT = STEP // 4
_INDEX, _FLOAT = ir.IntType(64), ir.FloatType()
_NUMBERS, _EIGHT = ir.VectorType(_FLOAT, _COUNT), ir.VectorType(_FLOAT, WIDTH)
_WORDS, _HALVES = ir.VectorType(ir.IntType(32), _COUNT), ir.VectorType(ir.IntType(16), _COUNT)
# Vectors of a row whose sums are in registers, of four rows of weights: there are 32 registers of this size, or 16 of half of it.
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
    words = builder.zext(_load(builder, address, _HALVES), _WORDS)
    return builder.bitcast(builder.shl(words, ir.Constant(_WORDS, [16] * _COUNT)), _NUMBERS)


def _splat(builder: Any, number: Any) -> Any:
    single = builder.insert_element(ir.Constant(_NUMBERS, ir.Undefined), number, ir.Constant(ir.IntType(32), 0))
    return pick(builder, single, single, [0] * _COUNT)


def add_weighted(queries: int, vectors: int, halves: bool) -> Any:
    """Return a function of compiled code: adds rows, each times its weight, to the sums of some queries.

    Its arguments: where the addresses of the weights of each query lie; the address of the rows, and bytes from one to the next;
    how many; the address of the sums, and bytes from those of one query to those of the next.

    Args:
        vectors: sixteen numbers of a row each.
        halves: the rows are in bfloat16.
    """

    def emit(builder: Any, weights: Any, rows: Any, stride: Any, count: Any, sums: Any, size: Any) -> None:
        places = [_load(builder, builder.add(weights, _constant(8 * query)), _INDEX) for query in range(queries)]
        targets = [
            [builder.add(_behind(builder, sums, _constant(query), size), _constant(STEP * part)) for part in range(vectors)]
            for query in range(queries)
        ]
        kept = [[cgutils.alloca_once_value(builder, _load(builder, at)) for at in parts] for parts in targets]
        with cgutils.for_range(builder, count, intp=_INDEX) as loop:
            row = _behind(builder, rows, loop.index, stride)
            read, width = (_load_halves, STEP // 2) if halves else (_load, STEP)
            values = [read(builder, builder.add(row, _constant(width * part))) for part in range(vectors)]
            for place, parts in zip(places, kept, strict=True):
                weight = _splat(builder, _load(builder, _behind(builder, place, loop.index, _constant(4)), _FLOAT))
                for value, total in zip(values, parts, strict=True):
                    kind = ir.FunctionType(_NUMBERS, [_NUMBERS] * 3)
                    fused = cgutils.get_or_insert_function(builder.module, kind, f"llvm.fma.v{_COUNT}f32")
                    builder.store(builder.call(fused, (weight, value, builder.load(total))), total)
        for parts, totals in zip(targets, kept, strict=True):
            for at, total in zip(parts, totals, strict=True):
                _store(builder, at, builder.load(total))

    return operation(types.void, (types.int64,) * 6, emit)


def _larger(builder: Any, one: Any, other: Any) -> Any:
    return builder.select(builder.fcmp_ordered(">", one, other), one, other)


def _fold(builder: Any, vector: Any, join: Any) -> Any:
    """Join the first half of the lanes with the second, until there is one."""
    half = vector.type.count // 2
    while half:
        low, high = (pick(builder, vector, vector, list(range(first, first + half))) for first in (0, half))
        vector, half = join(builder, low, high), half // 2
    return builder.extract_element(vector, ir.Constant(ir.IntType(32), 0))


def total_of(builder: Any, vector: Any) -> Any:
    """Return the sum of all lanes, for what `emit` writes: the first half is added to the second, until there is one."""
    return _fold(builder, vector, lambda builder, low, high: builder.fadd(low, high))


def _find_largest(builder: Any, numbers: Any, count: Any) -> Any:
    largest = cgutils.alloca_once_value(builder, ir.Constant(_NUMBERS, [-np.inf] * _COUNT))
    with cgutils.for_range(builder, count, intp=_INDEX) as loop:
        one = _load(builder, _behind(builder, numbers, loop.index, _constant(STEP)))
        builder.store(_larger(builder, builder.load(largest), one), largest)
    return _fold(builder, builder.load(largest), _larger)


def _weigh(builder: Any, numbers: Any, count: Any, largest: Any) -> Any:
    """Sums of eight lanes: the same as where eight numbers are taken at a time."""
    total = cgutils.alloca_once_value(builder, ir.Constant(_EIGHT, [0.0] * WIDTH))
    most = _splat(builder, largest)
    with cgutils.for_range(builder, count, intp=_INDEX) as loop:
        place = _behind(builder, numbers, loop.index, _constant(STEP))
        weights = exponential(builder, builder.fsub(_load(builder, place), most))
        _store(builder, place, weights)
        for first in (0, WIDTH):
            eight = pick(builder, weights, weights, list(range(first, first + WIDTH)))
            builder.store(builder.fadd(builder.load(total), eight), total)
    return total_of(builder, builder.load(total))


def _scale(builder: Any, source: Any, target: Any, count: Any, factor: Any) -> None:
    factors = _splat(builder, factor)
    with cgutils.for_range(builder, count, intp=_INDEX) as loop:
        place = _behind(builder, source, loop.index, _constant(STEP))
        _store(builder, _behind(builder, target, loop.index, _constant(STEP)), builder.fmul(_load(builder, place), factors))


# The largest of some vectors of numbers: address, how many vectors.
find_largest = operation(types.float32, (types.int64,) * 2, _find_largest)
# Replace numbers by the exponentials of their difference to the largest, and return their sum: lane l of eight adds up those at
# l, l + 8, ...; then lanes l and l + 4 are added, l and l + 2, 0 and 1. Address, how many vectors, the largest.
weigh = operation(types.float32, (types.int64, types.int64, types.float32), _weigh)
# Multiply numbers: where they lie, where they go, how many vectors, the factor.
scale = operation(types.void, (types.int64,) * 3 + (types.float32,), _scale)
