"""Rows of sixteen float32 numbers, one of each column, in compiled code: what a softmax of sixteen columns at once is made of.

Rows lie side by side, 64 bytes each; addresses are in bytes. A column's numbers depend on that column alone, and are made in the
order of the rows. For processors with AVX512_BF16 (`paceline.common.dots.available`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types

from paceline.common import dots
from paceline.common.dots import BFloat16
from paceline.common.lanes import exponential, operation, pick, pointer

COLUMNS = 16
ROW = 64  # bytes
_INDEX = ir.IntType(64)
_NUMBERS, _WORDS = ir.VectorType(ir.FloatType(), COLUMNS), ir.VectorType(ir.IntType(32), COLUMNS)
_HALVES, _PAIRS = ir.VectorType(ir.IntType(16), COLUMNS), ir.VectorType(BFloat16(), 2 * COLUMNS)
_INTERLEAVED = [place // 2 + place % 2 * COLUMNS for place in range(2 * COLUMNS)]


def _where_available(emit: Callable[..., None]) -> Callable[..., None]:
    """Return `emit`, or on other processors what ends the process: it is compiled there, too, by code that asks before."""

    def guarded(builder: Any, *values: Any) -> None:
        if dots.available():
            emit(builder, *values)
        else:
            builder.call(cgutils.get_or_insert_function(builder.module, ir.FunctionType(ir.VoidType(), []), "llvm.trap"), [])

    return guarded


def _load(builder: Any, address: Any, kind: Any = _NUMBERS) -> Any:
    return builder.load(pointer(builder, address, kind), align=2)


def _store(builder: Any, address: Any, value: Any) -> None:
    builder.store(value, pointer(builder, address, value.type), align=2)


def _behind(builder: Any, address: Any, index: Any, size: int) -> Any:
    return builder.add(address, builder.mul(index, ir.Constant(_INDEX, size)))


def _constant(number: float) -> Any:
    return ir.Constant(_NUMBERS, [number] * COLUMNS)


def _scale(builder: Any, rows: Any, count: Any, factor: Any) -> None:
    single = builder.insert_element(ir.Constant(_NUMBERS, ir.Undefined), factor, ir.Constant(ir.IntType(32), 0))
    factors = pick(builder, single, single, [0] * COLUMNS)
    with cgutils.for_range(builder, count, intp=_INDEX) as loop:
        place = _behind(builder, rows, loop.index, ROW)
        _store(builder, place, builder.fmul(_load(builder, place), factors))


def _larger(builder: Any, one: Any, other: Any) -> Any:
    return builder.select(builder.fcmp_ordered(">", one, other), one, other)


def _find_largest(builder: Any, rows: Any, fours: Any, out: Any) -> None:
    """Four rows at a time, since one comparison would wait for the other."""
    largest = [cgutils.alloca_once_value(builder, _load(builder, out)) for _ in range(4)]
    with cgutils.for_range(builder, fours, intp=_INDEX) as loop:
        place = _behind(builder, rows, loop.index, 4 * ROW)
        for kept in largest:
            builder.store(_larger(builder, builder.load(kept), _load(builder, place)), kept)
            place = _next(builder, place)
    first, second, third, fourth = (builder.load(kept) for kept in largest)
    _store(builder, out, _larger(builder, _larger(builder, first, second), _larger(builder, third, fourth)))


def _weigh(builder: Any, rows: Any, pairs: Any, largest: Any, total: Any, high: Any, low: Any) -> None:
    most = _load(builder, largest)
    # Columns without any number: their exponentials are zeros.
    most = builder.select(builder.fcmp_ordered("==", most, _constant(-np.inf)), _constant(0.0), most)
    sums = cgutils.alloca_once_value(builder, _load(builder, total))
    with cgutils.for_range(builder, pairs, intp=_INDEX) as loop:
        place = _behind(builder, rows, loop.index, 2 * ROW)
        weights = [exponential(builder, builder.fsub(_load(builder, at), most)) for at in (place, _next(builder, place))]
        for weight in weights:
            builder.store(builder.fadd(builder.load(sums), weight), sums)
        rounded = _round_pairs(builder, *weights)
        _store(builder, _behind(builder, high, loop.index, ROW), rounded)
        first = builder.bitcast(builder.shl(rounded, ir.Constant(_WORDS, [16] * COLUMNS)), _NUMBERS)
        second = builder.bitcast(builder.and_(rounded, ir.Constant(_WORDS, [0xFFFF0000] * COLUMNS)), _NUMBERS)
        rests = [builder.fsub(weight, part) for weight, part in zip(weights, (first, second), strict=True)]
        _store(builder, _behind(builder, low, loop.index, ROW), _round_pairs(builder, *rests))
    _store(builder, total, builder.load(sums))


def _next(builder: Any, address: Any) -> Any:
    return builder.add(address, ir.Constant(_INDEX, ROW))


def _round_pairs(builder: Any, first: Any, second: Any) -> Any:
    """Return words of two numbers in bfloat16 each, the first one low."""
    kind = ir.FunctionType(_PAIRS, [_NUMBERS] * 2)
    called = cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.avx512bf16.cvtne2ps2bf16.512")
    halves = builder.bitcast(builder.call(called, [second, first]), ir.VectorType(ir.IntType(16), 2 * COLUMNS))
    return builder.bitcast(pick(builder, halves, halves, _INTERLEAVED), _WORDS)


def _pair_up(builder: Any, first: Any, second: Any, out: Any) -> None:
    pairs = pick(builder, _load(builder, first, _HALVES), _load(builder, second, _HALVES), _INTERLEAVED)
    _store(builder, out, pairs)


# Multiply rows: address, count, factor.
scale = operation(types.void, (types.int64, types.int64, types.float32), _where_available(_scale))
# Replace a row by the largest of each column, its own number among them: rows, fours of them, that row.
find_largest = operation(types.void, (types.int64,) * 3, _where_available(_find_largest))
# Exponentials of the difference to the largest, each as the sum of two numbers in bfloat16 (as exact as 16 bits are), and their
# totals: rows, pairs of them, the row of the largest, the row the totals are added to, where the first numbers of all pairs of
# rows go, as words of two, and the second ones.
weigh = operation(types.void, (types.int64,) * 6, _where_available(_weigh))
# Words of two from two times sixteen numbers of 16 bits: first, second, target.
pair_up = operation(types.void, (types.int64,) * 3, _where_available(_pair_up))
