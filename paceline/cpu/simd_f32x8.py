"""Provide `Float32x8`, a vector type with eight float32 lanes for compiled code.

Each operation emits LLVM vector instructions, so kernels do not rely on auto-vectorisation. Each
lane follows IEEE arithmetic, and the compiler may neither reorder operations nor contract them. A
result is therefore bit-identical on every processor, in every loop and in every lane. `fused(a, b,
c)` computes a * b + c with a single rounding.
"""

from __future__ import annotations

from typing import Any

import numba.extending
from llvmlite import ir
from numba.core import types
from numba.core.datamodel import models

from paceline.cpu import emit
from paceline.cpu.emit import bfloat16_bits, narrow, operation, pick, pointer, widen

WIDTH = 8  # lanes in a vector

_FLOAT = ir.FloatType()
_VECTOR = ir.VectorType(_FLOAT, WIDTH)
_WORDS = ir.VectorType(ir.IntType(32), WIDTH)
_HALVES = ir.VectorType(ir.IntType(16), WIDTH)


class _LanesType(types.Type):
    def __init__(self) -> None:
        super().__init__(name="float32x8")


@numba.extending.register_model(_LanesType)
class _LanesModel(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, _VECTOR)


Float32x8 = _LanesType()


def _words(number: int) -> Any:
    return emit.words(number, WIDTH)


def _marked(builder: Any, values: Any, source: Any) -> Any:
    """Emit instructions that set the lanes of `values` to NaN where `source` is NaN."""
    return builder.select(builder.fcmp_unordered("uno", source, source), source, values)


def _with_sign(builder: Any, size: Any, signed: Any) -> Any:
    sign = builder.and_(builder.bitcast(signed, _WORDS), _words(0x80000000))
    return builder.bitcast(
        builder.or_(builder.and_(builder.bitcast(size, _WORDS), _words(0x7FFFFFFF)), sign), _VECTOR
    )


def emit_store_sums(builder: Any, address: Any, *vectors: Any) -> None:
    """Emit instructions that sum the lanes of four vectors, and store the four sums.

    The instructions add the lanes of each vector in the order of `emit.fold`.
    """
    halves = [
        builder.fadd(
            pick(builder, vector, vector, [0, 1, 2, 3]), pick(builder, vector, vector, [4, 5, 6, 7])
        )
        for vector in vectors
    ]
    pairs = [
        builder.fadd(
            pick(builder, first, second, [0, 1, 4, 5]), pick(builder, first, second, [2, 3, 6, 7])
        )
        for first, second in (halves[:2], halves[2:])
    ]
    sums = builder.fadd(
        pick(builder, pairs[0], pairs[1], [0, 2, 4, 6]),
        pick(builder, pairs[0], pairs[1], [1, 3, 5, 7]),
    )
    builder.store(sums, pointer(builder, address, ir.VectorType(_FLOAT, 4)), align=4)


def emit_load(builder: Any, address: Any) -> Any:
    """Emit instructions that load eight float32 numbers."""
    return builder.load(pointer(builder, address, _VECTOR), align=4)


def _store(builder: Any, address: Any, lanes: Any) -> None:
    builder.store(lanes, pointer(builder, address, _VECTOR), align=4)


def emit_load_bfloat16(builder: Any, address: Any) -> Any:
    """Emit instructions that load eight bfloat16 numbers as float32."""
    return widen(builder, builder.load(pointer(builder, address, _HALVES), align=2))


def _load_float16(builder: Any, address: Any) -> Any:
    # The multiplication adjusts the exponent and normalises subnormal numbers. The conversion is
    # exact for every number.
    words = builder.zext(builder.load(pointer(builder, address, _HALVES), align=2), _WORDS)
    size = builder.and_(words, _words(0x7FFF))
    small = builder.bitcast(builder.shl(size, _words(13)), _VECTOR)
    bits = builder.bitcast(builder.fmul(small, emit.floats(2.0**112, WIDTH)), _WORDS)
    is_infinite = builder.icmp_unsigned(">=", size, _words(0x7C00))  # infinity and NaN
    bits = builder.select(is_infinite, builder.or_(bits, _words(0x7F800000)), bits)
    sign = builder.shl(builder.and_(words, _words(0x8000)), _words(16))
    return builder.bitcast(builder.or_(bits, sign), _VECTOR)


def _store_bfloat16(builder: Any, address: Any, lanes: Any) -> None:
    builder.store(narrow(builder, lanes), pointer(builder, address, _HALVES), align=2)


def _to_bfloat16(builder: Any, lanes: Any) -> Any:
    bits = bfloat16_bits(builder, lanes)
    return builder.bitcast(builder.shl(bits, _words(16)), _VECTOR)


def _load_float(builder: Any, address: Any) -> Any:
    return builder.load(pointer(builder, address, _FLOAT))


def _store_float(builder: Any, address: Any, number: Any) -> None:
    builder.store(number, pointer(builder, address, _FLOAT))


load = operation(Float32x8, (types.int64,), emit_load)
store = operation(types.void, (types.int64, Float32x8), _store)
load_bfloat16 = operation(Float32x8, (types.int64,), emit_load_bfloat16)
load_float16 = operation(Float32x8, (types.int64,), _load_float16)
store_bfloat16 = operation(types.void, (types.int64, Float32x8), _store_bfloat16)
# rounds to the nearest bfloat16 number
to_bfloat16 = operation(Float32x8, (Float32x8,), _to_bfloat16)
prefetch = operation(types.void, (types.int64,), emit.fetch)  # into the L1 cache
# into the L2 cache
prefetch_second = operation(
    types.void, (types.int64,), lambda builder, a: emit.fetch(builder, a, 2)
)
load_float = operation(types.float32, (types.int64,), _load_float)
store_float = operation(types.void, (types.int64, types.float32), _store_float)
splat = operation(Float32x8, (types.float32,), lambda builder, a: emit.spread(builder, a, WIDTH))
add = operation(Float32x8, (Float32x8, Float32x8), lambda builder, a, b: builder.fadd(a, b))
subtract = operation(Float32x8, (Float32x8, Float32x8), lambda builder, a, b: builder.fsub(a, b))
multiply = operation(Float32x8, (Float32x8, Float32x8), lambda builder, a, b: builder.fmul(a, b))
divide = operation(Float32x8, (Float32x8, Float32x8), lambda builder, a, b: builder.fdiv(a, b))
fused = operation(Float32x8, (Float32x8, Float32x8, Float32x8), emit.multiply_add)
larger = operation(Float32x8, (Float32x8, Float32x8), emit.larger_of)
marked = operation(Float32x8, (Float32x8, Float32x8), _marked)
with_sign = operation(Float32x8, (Float32x8, Float32x8), _with_sign)
exp = operation(Float32x8, (Float32x8,), emit.exponential)
total = operation(types.float32, (Float32x8,), emit.total_of)
largest = operation(
    types.float32, (Float32x8,), lambda builder, a: emit.fold(builder, a, emit.larger_of)
)
store_sums = operation(
    types.void, (types.int64, Float32x8, Float32x8, Float32x8, Float32x8), emit_store_sums
)
