"""Emit instructions that convert numbers to bfloat16, for attention with AMX.

The operations require AVX512_BF16; see `avx512_dot.available`.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import cgutils, types

from paceline.cpu.avx512_dot import BFloat16, where_available
from paceline.cpu.emit import exponential, operation, pick, pointer, spread, total_of, widen
from paceline.cpu.memory import FLOAT_BYTES

COLUMNS = 16  # lanes in a vector
STEP = 2 * COLUMNS * FLOAT_BYTES  # bytes in two float32 vectors
_INDEX = ir.IntType(64)
_NUMBERS = ir.VectorType(ir.FloatType(), COLUMNS)
_HALVES, _PAIRS = ir.VectorType(ir.IntType(16), COLUMNS), ir.VectorType(BFloat16(), 2 * COLUMNS)
_ALL_HALVES = ir.VectorType(ir.IntType(16), 2 * COLUMNS)
_INTERLEAVED = [lane // 2 + lane % 2 * COLUMNS for lane in range(2 * COLUMNS)]


def _load(builder: Any, address: Any, kind: Any) -> Any:
    return builder.load(pointer(builder, address, kind), align=2)


def _store(builder: Any, address: Any, value: Any) -> None:
    builder.store(value, pointer(builder, address, value.type), align=2)


def _plus(builder: Any, address: Any, distance: int) -> Any:
    return builder.add(address, ir.Constant(_INDEX, distance))


def _weigh(builder: Any, numbers: Any, steps: Any, largest: Any) -> Any:
    maximum = spread(builder, largest, COLUMNS)
    total = cgutils.alloca_once_value(builder, ir.Constant(_NUMBERS, [0.0] * COLUMNS))
    with cgutils.for_range(builder, steps, intp=_INDEX) as loop:
        first = builder.add(numbers, builder.mul(loop.index, ir.Constant(_INDEX, STEP)))
        second = _plus(builder, first, STEP // 2)
        weights = [
            exponential(builder, builder.fsub(_load(builder, source, _NUMBERS), maximum))
            for source in (first, second)
        ]
        for weight in weights:
            builder.store(builder.fadd(builder.load(total), weight), total)
        rounded = round_pair(builder, *weights)
        rests = [
            builder.fsub(weight, _widen(builder, rounded, half))
            for half, weight in enumerate(weights)
        ]
        _store(builder, first, rounded)
        _store(builder, second, round_pair(builder, *rests))
    return total_of(builder, builder.load(total))


def round_pair(builder: Any, first: Any, second: Any) -> Any:
    """Emit an instruction that rounds two vectors of 16 float32 numbers to bfloat16."""
    kind = ir.FunctionType(_PAIRS, [_NUMBERS] * 2)
    called = cgutils.get_or_insert_function(
        builder.module, kind, "llvm.x86.avx512bf16.cvtne2ps2bf16.512"
    )
    return builder.bitcast(builder.call(called, [second, first]), _ALL_HALVES)


def _widen(builder: Any, halves: Any, half: int) -> Any:
    """Emit instructions that convert 16 of 32 bfloat16 numbers to float32.

    `half` is 0 for the first 16 numbers, or 1 for the last 16.
    """
    return widen(
        builder, pick(builder, halves, halves, list(range(half * COLUMNS, (half + 1) * COLUMNS)))
    )


def _pair_up(builder: Any, first: Any, second: Any, out: Any) -> None:
    _store(
        builder,
        out,
        pick(
            builder, _load(builder, first, _HALVES), _load(builder, second, _HALVES), _INTERLEAVED
        ),
    )


# Replaces each number by exp(number - largest), and returns the sum of the exponentials. Each
# exponential is stored as two bfloat16 numbers, whose sum has 16 exact bits. A step processes 32
# numbers: it writes 32 rounded exponentials, followed by their 32 rounding errors. Lane l of
# sixteen sums the exponentials at l, l + 16, and so on. The lanes are then added in pairs: l and l
# + 8, l and l + 4, l and l + 2, and finally 0 and 1.
# Arguments: address, number of steps, largest number.
weigh = operation(
    types.float32,
    (types.int64, types.int64, types.float32),
    where_available(_weigh, ir.Constant(ir.FloatType(), 0.0)),
)
# Interleaves two rows of sixteen 16-bit numbers. Arguments: first row, second row, target.
pair_up = operation(types.void, (types.int64,) * 3, where_available(_pair_up))
