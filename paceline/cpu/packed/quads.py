"""Emit code that multiplies rows by quads of outputs, in `avx512_dot`'s order.

A quad is a group of four outputs. One instruction multiplies these two vectors:

    weights:  one chunk (eight numbers) of each of the four outputs' weights
    row:      the same chunk of one row, repeated four times

In contrast, `avx512_dot` multiplies chunks of four rows by one output's weights, repeated four
times. With a single row, three quarters of its row vector would be unused. Both methods compute
bit-identical sums, because multiplication is commutative.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from numba.core import cgutils, types

from paceline.cpu.avx512_dot import (
    CHUNK,
    INDEX,
    LINE,
    NUMBERS,
    SUMS,
    add_products,
    constant,
    plus,
    repeat,
    times,
    where_available,
)
from paceline.cpu.emit import floats, narrow, operation, pick, pointer
from paceline.cpu.memory import FLOAT_BYTES
from paceline.cpu.simd_f32x8 import WIDTH, emit_load

_SIDE = 4  # quads whose totals are written together; outputs per quad; lanes per output
WRITTEN = _SIDE * _SIDE  # maximum number of outputs that `write_row` writes


class _QuadOperands(NamedTuple):
    """The arguments of a `multiply_quads` operation, except `num_rows`."""

    rows: Any
    row_bytes: Any
    weight: Any
    num_chunks: Any
    sums: Any
    sums_stride: Any


def multiply_quads(counts: tuple[int, ...], quads: int) -> Any:
    """Return an operation that multiplies rows by groups of four outputs (quads).

    The operation adds the products to stored sums. It ends the process if the processor lacks
    AVX512_BF16.

    Arguments of the operation (distances are in bytes):
        num_rows: Number of rows, one of `counts`.
        rows: Address of the bfloat16 rows, at the first input to multiply.
        row_bytes: Distance between consecutive rows.
        weight: Address of the weights, chunk by chunk. For each chunk of inputs, there is one cache
            line per quad.
        num_chunks: Number of chunks (16 bytes each) to multiply.
        sums: Address of the partial sums, with one cache line per quad.
        sums_stride: Distance between the partial sums of consecutive rows.

    Args:
        counts: Numbers of rows that the operation supports.
        quads: Number of quads. The registers have room for 24 vectors of sums, one vector per quad
            and row.
    """

    def emit(builder: Any, num_rows: Any, *operands: Any) -> None:
        for count in counts:
            with builder.if_then(builder.icmp_signed("==", num_rows, constant(count))):
                _multiply(builder, count, quads, _QuadOperands(*operands))

    return operation(types.void, (types.int64,) * 7, where_available(emit))


def _multiply(builder: Any, num_rows: int, quads: int, operands: _QuadOperands) -> None:
    rows, row_bytes, weight, num_chunks, sums, sums_stride = operands
    row_starts, sum_starts = (
        [builder.add(base, times(builder, stride, row)) for row in range(num_rows)]
        for base, stride in ((rows, row_bytes), (sums, sums_stride))
    )
    sum_slots = [
        [pointer(builder, plus(builder, start, quad * LINE), SUMS) for quad in range(quads)]
        for start in sum_starts
    ]
    totals = [
        [cgutils.alloca_once_value(builder, builder.load(slot, align=LINE)) for slot in own]
        for own in sum_slots
    ]
    with cgutils.for_range(builder, num_chunks, intp=INDEX) as loop:
        lines = builder.add(weight, times(builder, loop.index, quads * LINE))
        chunk = times(builder, loop.index, CHUNK)
        vectors = [
            builder.load(pointer(builder, plus(builder, lines, quad * LINE), NUMBERS), align=LINE)
            for quad in range(quads)
        ]
        for start, own in zip(row_starts, totals, strict=True):
            numbers = repeat(builder, builder.add(start, chunk))
            for vector, total in zip(vectors, own, strict=True):
                added = add_products(builder, builder.load(total), vector, numbers)
                builder.store(added, total)
    for own, own_slots in zip(totals, sum_slots, strict=True):
        for total, slot in zip(own, own_slots, strict=True):
            builder.store(builder.load(total), slot, align=LINE)


def _write_row(builder: Any, source: Any, bias: Any, out: Any, width: Any) -> None:
    """Emit instructions that add the partial sums of four quads, and write the totals.

    The instructions add the partial sums in the order of `avx512_dot`, and the bias last.

    Args:
        builder: LLVM builder.
        source: Address of the partial sums of one row, with one cache line per quad.
        bias: Address of the bias, or 0.
        out: Address at which to write the totals in bfloat16.
        width: Number of outputs to write, 8 or 16.
    """
    quads = [
        builder.load(pointer(builder, plus(builder, source, number * LINE), SUMS), align=LINE)
        for number in range(_SIDE)
    ]
    first_pair, second_pair = (
        _fold(builder, quads[number], quads[number + 1], (0, 1), 2) for number in (0, 2)
    )
    of_outputs = _fold(
        builder, first_pair, second_pair, (0, 2), 1
    )  # a lane for each output of a quad, then quad
    order = [_SIDE * (lane % _SIDE) + lane // _SIDE for lane in range(WRITTEN)]
    totals = pick(builder, of_outputs, of_outputs, order)
    slot = cgutils.alloca_once_value(builder, totals)
    is_whole = builder.icmp_signed(">", width, constant(WIDTH))
    with builder.if_then(builder.icmp_signed("!=", bias, constant(0))):
        first = emit_load(builder, bias)
        second = cgutils.alloca_once_value(builder, floats(0.0, WIDTH))
        with builder.if_then(is_whole):
            builder.store(emit_load(builder, plus(builder, bias, WIDTH * FLOAT_BYTES)), second)
        added = pick(builder, first, builder.load(second), list(range(WRITTEN)))
        builder.store(builder.fadd(totals, added), slot)
    halves = narrow(builder, builder.load(slot))
    with builder.if_else(is_whole) as (whole, part):
        with whole:
            builder.store(halves, pointer(builder, out, halves.type), align=2)
        with part:
            eight = pick(builder, halves, halves, list(range(WIDTH)))
            builder.store(eight, pointer(builder, out, eight.type), align=2)


def _fold(builder: Any, first: Any, second: Any, lanes: tuple[int, int], step: int) -> Any:
    """Emit instructions that add pairs of lanes of two vectors.

    Each vector consists of four groups of four lanes. Let a be a group of the first vector, and b
    the group at the same position in the second vector. The result contains four sums at the
    position of the group. For lanes (0, 1) and step 2, these are:

        a[0] + a[2], a[1] + a[3], b[0] + b[2], b[1] + b[3]

    For lanes (0, 2) and step 1:

        a[0] + a[1], a[2] + a[3], b[0] + b[1], b[2] + b[3]

    Args:
        builder: LLVM builder.
        first: First vector.
        second: Second vector.
        lanes: First lane of each pair, as an index within a group.
        step: Distance between the two lanes of a pair.
    """
    groups = range(0, WRITTEN, _SIDE)
    halves = [
        pick(
            builder,
            first,
            second,
            [
                group + lane + shift + vector
                for group in groups
                for vector in (0, WRITTEN)
                for lane in lanes
            ],
        )
        for shift in (0, step)
    ]
    return builder.fadd(*halves)


# Adds the partial sums of four quads, and writes the totals in bfloat16. Arguments: address of the
# sums, address of the bias (or 0), address of the output, number of outputs (8 or 16).
write_row = operation(types.void, (types.int64,) * 4, where_available(_write_row))
