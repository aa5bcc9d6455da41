"""Provide a vector type of eight float32 lanes for compiled code, `Float32x8`.

Each operation emits LLVM vector instructions, so kernels do not rely on auto-vectorisation. Each
lane follows IEEE arithmetic, and the compiler may neither reorder nor contract it. A result has the
same bits on every processor, in every loop and in every lane. `fused(a, b, c)` rounds a * b + c
once.

Functions with a `builder` argument emit instructions; other modules build their own operations with
them. The operations at the end of the module are called from compiled code.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba.extending
from llvmlite import ir
from numba.core import cgutils, types
from numba.core.datamodel import models
from numba.core.types.misc import unliteral

WIDTH = 8  # lanes of a vector

_FLOAT = ir.FloatType()
_VECTOR = ir.VectorType(_FLOAT, WIDTH)
_WORDS = ir.VectorType(ir.IntType(32), WIDTH)
_HALVES = ir.VectorType(ir.IntType(16), WIDTH)
Emit = Callable[..., Any]


class _LanesType(types.Type):
    def __init__(self) -> None:
        super().__init__(name="float32x8")


@numba.extending.register_model(_LanesType)
class _LanesModel(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, _VECTOR)


Float32x8 = _LanesType()


def operation(result: Any, arguments: tuple[Any, ...], emit: Emit) -> Any:
    """Return a function for compiled code whose instructions `emit` writes.

    Args:
        result: Numba type of the result.
        arguments: Numba types of the arguments; at most nine.
        emit: Function of an LLVM builder and the argument values; returns the result value.
    """

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        value = emit(builder, *values)
        return context.get_dummy_value() if result == types.void else value

    def typed(*given: Any) -> Any:
        # Numba would convert other types: a sum of signed and unsigned addresses is a float64.
        return (result(*arguments), generate) if tuple(map(unliteral, given)) == arguments else None

    # Numba requires one named parameter per argument.
    definitions: list[Callable[..., Any]] = [
        lambda context: typed(),
        lambda context, a: typed(a),
        lambda context, a, b: typed(a, b),
        lambda context, a, b, c: typed(a, b, c),
        lambda context, a, b, c, d: typed(a, b, c, d),
        lambda context, a, b, c, d, e: typed(a, b, c, d, e),
        lambda context, a, b, c, d, e, f: typed(a, b, c, d, e, f),
        lambda context, a, b, c, d, e, f, g: typed(a, b, c, d, e, f, g),
        lambda context, a, b, c, d, e, f, g, h: typed(a, b, c, d, e, f, g, h),
        lambda context, a, b, c, d, e, f, g, h, i: typed(a, b, c, d, e, f, g, h, i),
    ]
    return numba.extending.intrinsic(definitions[len(arguments)])


def pointer(builder: Any, address: Any, kind: Any) -> Any:
    """Emit the cast of an address to a pointer to a value of type `kind`."""
    return builder.inttoptr(address, kind.as_pointer())


def spread(builder: Any, number: Any, count: int = WIDTH) -> Any:
    """Emit the broadcast of a number to `count` lanes."""
    undefined = ir.Constant(ir.VectorType(number.type, count), ir.Undefined)
    single = builder.insert_element(undefined, number, ir.Constant(ir.IntType(32), 0))
    return builder.shuffle_vector(single, undefined, _words(0, count))


def _constant(number: float, count: int = WIDTH) -> Any:
    return ir.Constant(ir.VectorType(_FLOAT, count), [ir.Constant(_FLOAT, number)] * count)


def _words(number: int, count: int = WIDTH) -> Any:
    return ir.Constant(ir.VectorType(ir.IntType(32), count), [number] * count)


def pick(builder: Any, first: Any, second: Any, lanes: list[int]) -> Any:
    """Emit a shuffle: select lanes of two concatenated vectors."""
    return builder.shuffle_vector(
        first, second, ir.Constant(ir.VectorType(ir.IntType(32), len(lanes)), lanes)
    )


def multiply_add(builder: Any, a: Any, b: Any, c: Any) -> Any:
    """Emit a * b + c, rounded once, for any number of lanes."""
    kind = ir.FunctionType(a.type, [a.type] * 3)
    return builder.call(
        cgutils.get_or_insert_function(builder.module, kind, f"llvm.fma.v{a.type.count}f32"),
        (a, b, c),
    )


def larger_of(builder: Any, first: Any, second: Any) -> Any:
    """Emit the maximum per lane, for any number of lanes."""
    return builder.select(builder.fcmp_ordered(">", first, second), first, second)


def _marked(builder: Any, values: Any, source: Any) -> Any:
    """Emit `values`, with NaN in the lanes where `source` is NaN."""
    return builder.select(builder.fcmp_unordered("uno", source, source), source, values)


def _with_sign(builder: Any, size: Any, signed: Any) -> Any:
    sign = builder.and_(builder.bitcast(signed, _WORDS), _words(0x80000000))
    return builder.bitcast(
        builder.or_(builder.and_(builder.bitcast(size, _WORDS), _words(0x7FFFFFFF)), sign), _VECTOR
    )


def fold(builder: Any, vector: Any, join: Emit) -> Any:
    """Emit a tree reduction: join both halves of the lanes until one lane is left.

    Eight lanes are joined as l and l + 4, then l and l + 2, then 0 and 1.
    """
    half = vector.type.count // 2
    while half:
        low, high = (
            pick(builder, vector, vector, list(range(first, first + half))) for first in (0, half)
        )
        vector, half = join(builder, low, high), half // 2
    return builder.extract_element(vector, ir.Constant(ir.IntType(32), 0))


def total_of(builder: Any, vector: Any) -> Any:
    """Emit the sum of all lanes, in the order of `fold`."""
    return fold(builder, vector, lambda builder, low, high: builder.fadd(low, high))


def emit_store_sums(builder: Any, address: Any, *vectors: Any) -> None:
    """Store the four sums of the lanes of four vectors, each in the order of `fold`."""
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


# Cephes expf: a polynomial for exp(r), |r| <= ln(2) / 2, and ln(2) as a sum of two numbers.
_POWERS = (
    1.9875691500e-4,
    1.3981999507e-3,
    8.3334519073e-3,
    4.1665795894e-2,
    1.6666665459e-1,
    5.0000001201e-1,
)
_LOG2_E, _LN2_HIGH, _LN2_LOW = 1.44269504088896341, 0.693359375, -2.12194440e-4
_ROUNDER = 1.5 * 2**23  # adding it to a number leaves the nearest integer in the low bits
_SMALLEST = -87.0  # the exponential of a smaller number is 0


def exponential(builder: Any, x: Any) -> Any:
    """Emit the exponential of numbers <= 0, with a relative error of 1e-7."""
    count = x.type.count

    def constant(number: float) -> Any:
        return _constant(number, count)

    shifted = multiply_add(builder, x, constant(_LOG2_E), constant(_ROUNDER))
    exponent = builder.fsub(shifted, constant(_ROUNDER))
    rest = multiply_add(builder, exponent, constant(-_LN2_HIGH), x)
    rest = multiply_add(builder, exponent, constant(-_LN2_LOW), rest)
    series = constant(_POWERS[0])
    for power in _POWERS[1:]:
        series = multiply_add(builder, series, rest, constant(power))
    series = multiply_add(
        builder, series, builder.fmul(rest, rest), builder.fadd(rest, constant(1.0))
    )
    bits = builder.shl(
        builder.bitcast(shifted, ir.VectorType(ir.IntType(32), count)), _words(23, count)
    )
    scale = builder.bitcast(builder.add(bits, _words(127 << 23, count)), x.type)
    tiny = builder.fcmp_ordered("<", x, constant(_SMALLEST))  # false for NaN, which stays NaN
    return builder.select(tiny, constant(0.0), builder.fmul(series, scale))


def emit_load(builder: Any, address: Any) -> Any:
    """Emit the load of eight float32 numbers."""
    return builder.load(pointer(builder, address, _VECTOR), align=4)


def _store(builder: Any, address: Any, lanes: Any) -> None:
    builder.store(lanes, pointer(builder, address, _VECTOR), align=4)


def widen(builder: Any, halves: Any) -> Any:
    """Emit the conversion of bfloat16 bits to float32, for any number of lanes."""
    count = halves.type.count
    words = builder.zext(halves, ir.VectorType(ir.IntType(32), count))
    return builder.bitcast(builder.shl(words, _words(16, count)), ir.VectorType(_FLOAT, count))


def emit_load_bfloat16(builder: Any, address: Any) -> Any:
    """Emit the load of eight bfloat16 numbers as float32."""
    return widen(builder, builder.load(pointer(builder, address, _HALVES), align=2))


def _load_float16(builder: Any, address: Any) -> Any:
    # A multiplication shifts the exponent; it also turns subnormal numbers into normal ones. The
    # conversion is exact for every number.
    words = builder.zext(builder.load(pointer(builder, address, _HALVES), align=2), _WORDS)
    size = builder.and_(words, _words(0x7FFF))
    small = builder.bitcast(builder.shl(size, _words(13)), _VECTOR)
    bits = builder.bitcast(builder.fmul(small, _constant(2.0**112)), _WORDS)
    is_infinite = builder.icmp_unsigned(">=", size, _words(0x7C00))  # infinity and NaN
    bits = builder.select(is_infinite, builder.or_(bits, _words(0x7F800000)), bits)
    sign = builder.shl(builder.and_(words, _words(0x8000)), _words(16))
    return builder.bitcast(builder.or_(bits, sign), _VECTOR)


def _halves_of(builder: Any, lanes: Any) -> Any:
    """Emit the rounding to bfloat16 bits: nearest, ties to even; NaN stays NaN."""
    bits = builder.bitcast(lanes, _WORDS)
    odd = builder.and_(builder.lshr(bits, _words(16)), _words(1))
    rounded = builder.lshr(builder.add(bits, builder.add(odd, _words(0x7FFF))), _words(16))
    return builder.select(builder.fcmp_unordered("uno", lanes, lanes), _words(0x7FC0), rounded)


def _store_bfloat16(builder: Any, address: Any, lanes: Any) -> None:
    builder.store(
        builder.trunc(_halves_of(builder, lanes), _HALVES),
        pointer(builder, address, _HALVES),
        align=2,
    )


def _to_bfloat16(builder: Any, lanes: Any) -> Any:
    return builder.bitcast(builder.shl(_halves_of(builder, lanes), _words(16)), _VECTOR)


def _load_float(builder: Any, address: Any) -> Any:
    return builder.load(pointer(builder, address, _FLOAT))


def _store_float(builder: Any, address: Any, number: Any) -> None:
    builder.store(number, pointer(builder, address, _FLOAT))


def fetch(builder: Any, address: Any, nearness: int = 3) -> None:
    """Emit the prefetch of a cache line into the L1 (`nearness` 3) or L2 cache (2)."""
    kinds = [ir.IntType(8).as_pointer(), *[ir.IntType(32)] * 3]
    called = cgutils.get_or_insert_function(
        builder.module, ir.FunctionType(ir.VoidType(), kinds), "llvm.prefetch.p0"
    )
    read, locality, data = (ir.Constant(ir.IntType(32), number) for number in (0, nearness, 1))
    builder.call(called, (pointer(builder, address, ir.IntType(8)), read, locality, data))


load = operation(Float32x8, (types.int64,), emit_load)
store = operation(types.void, (types.int64, Float32x8), _store)
load_bfloat16 = operation(Float32x8, (types.int64,), emit_load_bfloat16)
load_float16 = operation(Float32x8, (types.int64,), _load_float16)
store_bfloat16 = operation(types.void, (types.int64, Float32x8), _store_bfloat16)
# rounds to the nearest bfloat16 number
to_bfloat16 = operation(Float32x8, (Float32x8,), _to_bfloat16)
prefetch = operation(types.void, (types.int64,), fetch)  # into the L1 cache
# into the L2 cache
prefetch_second = operation(types.void, (types.int64,), lambda builder, a: fetch(builder, a, 2))
load_float = operation(types.float32, (types.int64,), _load_float)
store_float = operation(types.void, (types.int64, types.float32), _store_float)
splat = operation(Float32x8, (types.float32,), spread)
add = operation(Float32x8, (Float32x8, Float32x8), lambda builder, a, b: builder.fadd(a, b))
subtract = operation(Float32x8, (Float32x8, Float32x8), lambda builder, a, b: builder.fsub(a, b))
multiply = operation(Float32x8, (Float32x8, Float32x8), lambda builder, a, b: builder.fmul(a, b))
divide = operation(Float32x8, (Float32x8, Float32x8), lambda builder, a, b: builder.fdiv(a, b))
fused = operation(Float32x8, (Float32x8, Float32x8, Float32x8), multiply_add)
larger = operation(Float32x8, (Float32x8, Float32x8), larger_of)
marked = operation(Float32x8, (Float32x8, Float32x8), _marked)
with_sign = operation(Float32x8, (Float32x8, Float32x8), _with_sign)
exp = operation(Float32x8, (Float32x8,), exponential)
total = operation(types.float32, (Float32x8,), total_of)
largest = operation(types.float32, (Float32x8,), lambda builder, a: fold(builder, a, larger_of))
store_sums = operation(
    types.void, (types.int64, Float32x8, Float32x8, Float32x8, Float32x8), emit_store_sums
)
