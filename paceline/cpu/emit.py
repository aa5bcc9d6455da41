"""Emit LLVM instructions, and wrap them as functions for compiled code.

Functions with a `builder` argument are emitters: they emit instructions and return the LLVM value
of the result. Unless stated otherwise, vectors may have any number of lanes. `operation` turns an
emitter into a function that compiled code can call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba.extending
from llvmlite import ir
from numba.core import cgutils, types
from numba.core.types.misc import unliteral

Emit = Callable[..., Any]
_FLOAT = ir.FloatType()


def operation(result: Any, arguments: tuple[Any, ...], emit: Emit) -> Any:
    """Turn an emitter into an operation, a function that compiled code can call.

    Args:
        result: Numba type of the result.
        arguments: Numba types of the arguments, at most nine.
        emit: Emitter. Its arguments are an LLVM builder, and then one LLVM value per argument.
    """

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        value = emit(builder, *values)
        return context.get_dummy_value() if result == types.void else value

    def typed(*given: Any) -> Any:
        # Reject arguments of other types. Numba would convert them, even from float64, which is the
        # type of a sum of signed and unsigned addresses.
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
    """Emit an instruction that casts an address to a pointer to type `kind`."""
    return builder.inttoptr(address, kind.as_pointer())


def spread(builder: Any, number: Any, count: int) -> Any:
    """Emit instructions that copy a number to all `count` lanes of a vector."""
    undefined = ir.Constant(ir.VectorType(number.type, count), ir.Undefined)
    single = builder.insert_element(undefined, number, ir.Constant(ir.IntType(32), 0))
    return builder.shuffle_vector(single, undefined, words(0, count))


def floats(number: float, count: int) -> Any:
    """Return a constant vector that contains a float32 number `count` times."""
    return ir.Constant(ir.VectorType(_FLOAT, count), [ir.Constant(_FLOAT, number)] * count)


def words(number: int, count: int) -> Any:
    """Return a constant vector that contains a 32-bit integer `count` times."""
    return ir.Constant(ir.VectorType(ir.IntType(32), count), [number] * count)


def pick(builder: Any, first: Any, second: Any, lanes: list[int]) -> Any:
    """Emit an instruction that selects lanes from the concatenation of two vectors."""
    return builder.shuffle_vector(
        first, second, ir.Constant(ir.VectorType(ir.IntType(32), len(lanes)), lanes)
    )


def multiply_add(builder: Any, a: Any, b: Any, c: Any) -> Any:
    """Emit a fused multiply-add: a * b + c, rounded only once."""
    kind = ir.FunctionType(a.type, [a.type] * 3)
    return builder.call(
        cgutils.get_or_insert_function(builder.module, kind, f"llvm.fma.v{a.type.count}f32"),
        (a, b, c),
    )


def larger_of(builder: Any, first: Any, second: Any) -> Any:
    """Emit instructions that compute the lane-wise maximum of two vectors."""
    return builder.select(builder.fcmp_ordered(">", first, second), first, second)


def fold(builder: Any, vector: Any, join: Emit) -> Any:
    """Emit instructions that reduce a vector to one number by combining its halves.

    For example, `join` combines eight lanes in three steps:

        lanes 0, 1, 2, 3 with lanes 4, 5, 6, 7
        lanes 0, 1 with lanes 2, 3
        lane 0 with lane 1

    Args:
        builder: LLVM builder.
        vector: Vector whose number of lanes is a power of two.
        join: Emitter that combines two vectors of equal size.
    """
    half = vector.type.count // 2
    while half:
        low, high = (
            pick(builder, vector, vector, list(range(first, first + half))) for first in (0, half)
        )
        vector, half = join(builder, low, high), half // 2
    return builder.extract_element(vector, ir.Constant(ir.IntType(32), 0))


def total_of(builder: Any, vector: Any) -> Any:
    """Emit instructions that add all lanes of a vector, in the order of `fold`."""
    return fold(builder, vector, lambda builder, low, high: builder.fadd(low, high))


# Constants of `expf` in the Cephes library: a polynomial for exp(r) with |r| <= ln(2) / 2, and
# ln(2) as the sum of two numbers.
_POWERS = (
    1.9875691500e-4,
    1.3981999507e-3,
    8.3334519073e-3,
    4.1665795894e-2,
    1.6666665459e-1,
    5.0000001201e-1,
)
_LOG2_E, _LN2_HIGH, _LN2_LOW = 1.44269504088896341, 0.693359375, -2.12194440e-4
_ROUNDER = 1.5 * 2**23  # added to a number, leaves the nearest integer in the low bits
_SMALLEST = -87.0  # the exponential of smaller numbers is set to 0


def exponential(builder: Any, x: Any) -> Any:
    """Emit instructions that compute exp(x) for x <= 0, with a relative error of 1e-7."""
    count = x.type.count

    def constant(number: float) -> Any:
        return floats(number, count)

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
        builder.bitcast(shifted, ir.VectorType(ir.IntType(32), count)), words(23, count)
    )
    scale = builder.bitcast(builder.add(bits, words(127 << 23, count)), x.type)
    tiny = builder.fcmp_ordered("<", x, constant(_SMALLEST))  # false for NaN, which stays NaN
    return builder.select(tiny, constant(0.0), builder.fmul(series, scale))


def widen(builder: Any, halves: Any) -> Any:
    """Emit instructions that convert the bits of bfloat16 numbers to float32."""
    count = halves.type.count
    bits = builder.zext(halves, ir.VectorType(ir.IntType(32), count))
    return builder.bitcast(builder.shl(bits, words(16, count)), ir.VectorType(_FLOAT, count))


def bfloat16_bits(builder: Any, numbers: Any) -> Any:
    """Emit instructions that round float32 numbers to bfloat16 bits in 32-bit lanes.

    The instructions round to nearest, with ties to even, and preserve NaN.
    """
    count = numbers.type.count
    bits = builder.bitcast(numbers, ir.VectorType(ir.IntType(32), count))
    odd = builder.and_(builder.lshr(bits, words(16, count)), words(1, count))
    rounded = builder.add(bits, builder.add(odd, words(0x7FFF, count)))
    unordered = builder.fcmp_unordered("uno", numbers, numbers)
    return builder.select(unordered, words(0x7FC0, count), builder.lshr(rounded, words(16, count)))


def narrow(builder: Any, numbers: Any) -> Any:
    """Emit instructions that round float32 numbers to bfloat16 bits in 16-bit lanes."""
    kind = ir.VectorType(ir.IntType(16), numbers.type.count)
    return builder.trunc(bfloat16_bits(builder, numbers), kind)


def fetch(builder: Any, address: Any, nearness: int = 3) -> None:
    """Emit an instruction that prefetches a cache line.

    Args:
        builder: LLVM builder.
        address: Address in the cache line.
        nearness: Cache into which to prefetch: 3 is the L1 cache, 2 is the L2 cache.
    """
    kinds = [ir.IntType(8).as_pointer(), *[ir.IntType(32)] * 3]
    called = cgutils.get_or_insert_function(
        builder.module, ir.FunctionType(ir.VoidType(), kinds), "llvm.prefetch.p0"
    )
    read, locality, data = (ir.Constant(ir.IntType(32), number) for number in (0, nearness, 1))
    builder.call(called, (pointer(builder, address, ir.IntType(8)), read, locality, data))
