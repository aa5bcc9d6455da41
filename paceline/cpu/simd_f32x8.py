"""Eight float32 numbers at once in compiled code: a type, `Float32x8`, whose arithmetic is written
out instead of hoped for.

Every operation is exact IEEE arithmetic per lane, with no permission to reorder or to contract, so
that a result has the same bits on every processor, in every loop, in whichever lane it is computed.
`fused(a, b, c)` is a * b + c rounded once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba.extending
from llvmlite import ir
from numba.core import cgutils, types
from numba.core.datamodel import models
from numba.core.types.misc import unliteral

WIDTH = 8

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
    """Return a function of compiled code: (arguments) -> result, whose instructions
    `emit(builder, *values)` writes.
    """

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        made = emit(builder, *values)
        return context.get_dummy_value() if result == types.void else made

    def typed(*given: Any) -> Any:
        """Refuse what numba would convert: a sum of signed and unsigned addresses is a float64
        there.
        """
        return (result(*arguments), generate) if tuple(map(unliteral, given)) == arguments else None

    # numba wants as many named parameters as there are arguments.
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
    ]
    return numba.extending.intrinsic(definitions[len(arguments)])


def pointer(builder: Any, address: Any, kind: Any) -> Any:
    """Return an address as a pointer to a value of a kind, for what `emit` writes."""
    return builder.inttoptr(address, kind.as_pointer())


def spread(builder: Any, number: Any, count: int = WIDTH) -> Any:
    """Return a number in each of `count` lanes, for what `emit` writes."""
    nothing = ir.Constant(ir.VectorType(number.type, count), ir.Undefined)
    single = builder.insert_element(nothing, number, ir.Constant(ir.IntType(32), 0))
    return builder.shuffle_vector(single, nothing, _words(0, count))


def _constant(number: float, count: int = WIDTH) -> Any:
    return ir.Constant(ir.VectorType(_FLOAT, count), [ir.Constant(_FLOAT, number)] * count)


def _words(number: int, count: int = WIDTH) -> Any:
    return ir.Constant(ir.VectorType(ir.IntType(32), count), [number] * count)


def pick(builder: Any, one: Any, other: Any, places: list[int]) -> Any:
    """Return the vector of what lies at `places` of two others, one behind the other, for what
    `emit` writes.
    """
    return builder.shuffle_vector(
        one, other, ir.Constant(ir.VectorType(ir.IntType(32), len(places)), places)
    )


def multiply_add(builder: Any, a: Any, b: Any, c: Any) -> Any:
    """Return a * b + c, rounded once, of any number of lanes, for what `emit` writes."""
    kind = ir.FunctionType(a.type, [a.type] * 3)
    return builder.call(
        cgutils.get_or_insert_function(builder.module, kind, f"llvm.fma.v{a.type.count}f32"),
        (a, b, c),
    )


def larger_of(builder: Any, one: Any, other: Any) -> Any:
    """Return the larger one in each lane, of any number of them, for what `emit` writes."""
    return builder.select(builder.fcmp_ordered(">", one, other), one, other)


def _marked(builder: Any, one: Any, other: Any) -> Any:
    """`one`, and NaN where `other` is."""
    return builder.select(builder.fcmp_unordered("uno", other, other), other, one)


def _with_sign(builder: Any, size: Any, signed: Any) -> Any:
    sign = builder.and_(builder.bitcast(signed, _WORDS), _words(0x80000000))
    return builder.bitcast(
        builder.or_(builder.and_(builder.bitcast(size, _WORDS), _words(0x7FFFFFFF)), sign), _VECTOR
    )


def fold(builder: Any, vector: Any, join: Emit) -> Any:
    """Join the first half of the lanes with the second, until there is one, for what `emit` writes.

    Of eight these are lanes l and l + 4, then l and l + 2, then 0 and 1.
    """
    half = vector.type.count // 2
    while half:
        low, high = (
            pick(builder, vector, vector, list(range(first, first + half))) for first in (0, half)
        )
        vector, half = join(builder, low, high), half // 2
    return builder.extract_element(vector, ir.Constant(ir.IntType(32), 0))


def total_of(builder: Any, vector: Any) -> Any:
    """Return the sum of all lanes, folded, for what `emit` writes."""
    return fold(builder, vector, lambda builder, low, high: builder.fadd(low, high))


def _store_sums(builder: Any, address: Any, *vectors: Any) -> None:
    """Write the sums of the lanes of four vectors: l and l + 4, then l and l + 2, then 0 and 1,
    as `fold` does.
    """
    halves = [
        builder.fadd(pick(builder, one, one, [0, 1, 2, 3]), pick(builder, one, one, [4, 5, 6, 7]))
        for one in vectors
    ]
    pairs = [
        builder.fadd(
            pick(builder, one, other, [0, 1, 4, 5]), pick(builder, one, other, [2, 3, 6, 7])
        )
        for one, other in (halves[:2], halves[2:])
    ]
    sums = builder.fadd(
        pick(builder, pairs[0], pairs[1], [0, 2, 4, 6]),
        pick(builder, pairs[0], pairs[1], [1, 3, 5, 7]),
    )
    builder.store(sums, pointer(builder, address, ir.VectorType(_FLOAT, 4)), align=4)


# exp(r) for |r| <= ln(2) / 2 by a polynomial, and ln(2) in two parts (Cephes expf).
_POWERS = (
    1.9875691500e-4,
    1.3981999507e-3,
    8.3334519073e-3,
    4.1665795894e-2,
    1.6666665459e-1,
    5.0000001201e-1,
)
_LOG2_E, _LN2_HIGH, _LN2_LOW = 1.44269504088896341, 0.693359375, -2.12194440e-4
_ROUNDER = (
    12582912.0  # 1.5 * 2**23: added to a number, it leaves the nearest integer in the low bits
)
_SMALLEST = -87.0  # exp of anything below is taken for 0


def exponential(builder: Any, x: Any) -> Any:
    """Exponential of any number of lanes, numbers <= 0, to 1e-7 of the result, for what `emit`
    writes.
    """
    count = x.type.count

    def constant(number: float) -> Any:
        return _constant(number, count)

    shifted = multiply_add(builder, x, constant(_LOG2_E), constant(_ROUNDER))
    whole = builder.fsub(shifted, constant(_ROUNDER))
    rest = multiply_add(builder, whole, constant(-_LN2_HIGH), x)
    rest = multiply_add(builder, whole, constant(-_LN2_LOW), rest)
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


def _load(builder: Any, address: Any) -> Any:
    return builder.load(pointer(builder, address, _VECTOR), align=4)


def _store(builder: Any, address: Any, lanes: Any) -> None:
    builder.store(lanes, pointer(builder, address, _VECTOR), align=4)


def widen(builder: Any, halves: Any) -> Any:
    """Return the bits of bfloat16 numbers, of any number of lanes, as float32, for what `emit`
    writes.
    """
    count = halves.type.count
    words = builder.zext(halves, ir.VectorType(ir.IntType(32), count))
    return builder.bitcast(builder.shl(words, _words(16, count)), ir.VectorType(_FLOAT, count))


def _load_bfloat16(builder: Any, address: Any) -> Any:
    return widen(builder, builder.load(pointer(builder, address, _HALVES), align=2))


def _load_float16(builder: Any, address: Any) -> Any:
    """Exact for every number: the exponent is moved by a product, which also makes subnormal
    numbers normal ones.
    """
    words = builder.zext(builder.load(pointer(builder, address, _HALVES), align=2), _WORDS)
    size = builder.and_(words, _words(0x7FFF))
    small = builder.bitcast(builder.shl(size, _words(13)), _VECTOR)
    bits = builder.bitcast(builder.fmul(small, _constant(2.0**112)), _WORDS)
    unbounded = builder.icmp_unsigned(">=", size, _words(0x7C00))  # infinity and NaN
    bits = builder.select(unbounded, builder.or_(bits, _words(0x7F800000)), bits)
    sign = builder.shl(builder.and_(words, _words(0x8000)), _words(16))
    return builder.bitcast(builder.or_(bits, sign), _VECTOR)


def _halves_of(builder: Any, lanes: Any) -> Any:
    """Return the bits in bfloat16, in words: rounded to the nearest, ties to even; NaN stays
    one.
    """
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
    """Have the line at an address brought into the nearest cache, or with 2 the one behind it,
    for what `emit` writes.
    """
    kinds = [ir.IntType(8).as_pointer(), *[ir.IntType(32)] * 3]
    called = cgutils.get_or_insert_function(
        builder.module, ir.FunctionType(ir.VoidType(), kinds), "llvm.prefetch.p0"
    )
    read, keep, data = (ir.Constant(ir.IntType(32), number) for number in (0, nearness, 1))
    builder.call(called, (pointer(builder, address, ir.IntType(8)), read, keep, data))


load = operation(Float32x8, (types.int64,), _load)
store = operation(types.void, (types.int64, Float32x8), _store)
load_bfloat16 = operation(Float32x8, (types.int64,), _load_bfloat16)
load_float16 = operation(Float32x8, (types.int64,), _load_float16)
store_bfloat16 = operation(types.void, (types.int64, Float32x8), _store_bfloat16)
# the nearest number that bfloat16 has
to_bfloat16 = operation(Float32x8, (Float32x8,), _to_bfloat16)
prefetch = operation(types.void, (types.int64,), fetch)  # into the nearest cache
# into the one behind it
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
    types.void, (types.int64, Float32x8, Float32x8, Float32x8, Float32x8), _store_sums
)
