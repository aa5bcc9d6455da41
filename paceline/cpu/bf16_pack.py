"""What attention by matrix instructions needs besides them: weights in bfloat16, and values two by
two. For processors with AVX512_BF16 (`paceline.cpu.avx512_dot.available`); addresses are in bytes.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import cgutils, types

from paceline.cpu.avx512_dot import BFloat16, where_available
from paceline.cpu.simd_f32x8 import exponential, operation, pick, pointer, spread, total_of, widen

COLUMNS = 16
STEP = 128  # bytes of 32 numbers in float32
_INDEX = ir.IntType(64)
_NUMBERS = ir.VectorType(ir.FloatType(), COLUMNS)
_HALVES, _PAIRS = ir.VectorType(ir.IntType(16), COLUMNS), ir.VectorType(BFloat16(), 2 * COLUMNS)
_ALL_HALVES = ir.VectorType(ir.IntType(16), 2 * COLUMNS)
_INTERLEAVED = [place // 2 + place % 2 * COLUMNS for place in range(2 * COLUMNS)]


def _load(builder: Any, address: Any, kind: Any) -> Any:
    return builder.load(pointer(builder, address, kind), align=2)


def _store(builder: Any, address: Any, value: Any) -> None:
    builder.store(value, pointer(builder, address, value.type), align=2)


def _behind(builder: Any, address: Any, distance: int) -> Any:
    return builder.add(address, ir.Constant(_INDEX, distance))


def _weigh(builder: Any, numbers: Any, steps: Any, largest: Any) -> Any:
    most = spread(builder, largest, COLUMNS)
    total = cgutils.alloca_once_value(builder, ir.Constant(_NUMBERS, [0.0] * COLUMNS))
    with cgutils.for_range(builder, steps, intp=_INDEX) as loop:
        first = builder.add(numbers, builder.mul(loop.index, ir.Constant(_INDEX, STEP)))
        second = _behind(builder, first, STEP // 2)
        weights = [
            exponential(builder, builder.fsub(_load(builder, at, _NUMBERS), most))
            for at in (first, second)
        ]
        for weight in weights:
            builder.store(builder.fadd(builder.load(total), weight), total)
        rounded = _round(builder, *weights)
        rests = [
            builder.fsub(weight, _widen(builder, rounded, half))
            for half, weight in enumerate(weights)
        ]
        _store(builder, first, rounded)
        _store(builder, second, _round(builder, *rests))
    return total_of(builder, builder.load(total))


def _round(builder: Any, first: Any, second: Any) -> Any:
    """Return 32 numbers in bfloat16."""
    kind = ir.FunctionType(_PAIRS, [_NUMBERS] * 2)
    called = cgutils.get_or_insert_function(
        builder.module, kind, "llvm.x86.avx512bf16.cvtne2ps2bf16.512"
    )
    return builder.bitcast(builder.call(called, [second, first]), _ALL_HALVES)


def _widen(builder: Any, halves: Any, half: int) -> Any:
    """Return the first or the second sixteen of 32 numbers in bfloat16 as float32."""
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


# Replace numbers, 32 in a step, by the exponentials of their difference to the largest, each as the
# sum of two in bfloat16 (as exact as 16 bits are): those of a step, then what is left of them.
# Returns their sum: lane l of sixteen adds up those at l, l + 16, ...; then lanes l and l + 8 are
# added, l and l + 4, l and l + 2, 0 and 1. Address, steps, the largest.
weigh = operation(
    types.float32,
    (types.int64, types.int64, types.float32),
    where_available(_weigh, ir.Constant(ir.FloatType(), 0.0)),
)
# Words of two from two times sixteen numbers of 16 bits: first, second, target.
pair_up = operation(types.void, (types.int64,) * 3, where_available(_pair_up))
