"""Emit dot products of rows with quads of outputs, in the order of `avx512_dot`.

A vector holds one chunk from each of four outputs. It is multiplied by four copies of the same
chunk of one row. `avx512_dot` instead multiplies four rows by one output, which wastes most of the
vector if there is only one row. The sums are bit-identical, because the product of two numbers
does not depend on their order.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from numba.core import cgutils, types

from paceline.cpu.avx512_dot import (
    BFLOAT16,
    CHUNK,
    INDEX,
    LINE,
    add_products,
    constant,
    fold_lanes,
    plus,
    repeat,
    times,
    where_available,
)
from paceline.cpu.emit import operation, pointer

QUADS_OF_LINE = 4  # quads whose totals fill a line


class _QuadOperands(NamedTuple):
    """The arguments of `multiply_quads` that follow the number of rows."""

    rows: Any
    row_bytes: Any
    weight: Any
    num_chunks: Any
    sums: Any
    sums_stride: Any


def multiply_quads(counts: tuple[int, ...], quads: int) -> Any:
    """Return an operation that adds the products of rows and quads to sums.

    If the processor lacks the instructions, the operation ends the process.

    Arguments of the operation, addresses and sizes in bytes:
        num_rows: Number of rows, one of `counts`.
        rows: Address of the bfloat16 rows, at the first element to multiply.
        row_bytes: Distance between consecutive rows.
        weight: Address of the quads, in the layout written by `unpacking`.
        num_chunks: Number of chunks of 16 bytes to multiply.
        sums: Address of the sums, with one cache line per quad.
        sums_stride: Distance between the sums of consecutive rows.

    Args:
        counts: Row counts that the operation supports.
        quads: Number of quads. The registers have room for 24 vectors of sums.
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
        [
            pointer(builder, plus(builder, start, quad * LINE), BFLOAT16.sums)
            for quad in range(quads)
        ]
        for start in sum_starts
    ]
    totals = [
        [cgutils.alloca_once_value(builder, builder.load(slot, align=LINE)) for slot in own]
        for own in sum_slots
    ]
    quad_bytes = times(builder, num_chunks, LINE)
    starts = [builder.add(weight, times(builder, quad_bytes, quad)) for quad in range(quads)]
    with cgutils.for_range(builder, num_chunks, intp=INDEX) as loop:
        line, chunk = (times(builder, loop.index, size) for size in (LINE, CHUNK))
        vectors = [
            builder.load(pointer(builder, builder.add(start, line), BFLOAT16.vector), align=LINE)
            for start in starts
        ]
        for start, own in zip(row_starts, totals, strict=True):
            numbers = repeat(builder, builder.add(start, chunk), BFLOAT16)
            for vector, total in zip(vectors, own, strict=True):
                added = add_products(builder, BFLOAT16, builder.load(total), vector, numbers)
                builder.store(added, total)
    for own, own_slots in zip(totals, sum_slots, strict=True):
        for total, slot in zip(own, own_slots, strict=True):
            builder.store(builder.load(total), slot, align=LINE)


def _store_totals(builder: Any, source: Any, target: Any) -> None:
    """Emit the totals of four quads, with lanes added as in `avx512_dot`."""
    first, second, third, fourth = (
        builder.load(
            pointer(builder, plus(builder, source, quad * LINE), BFLOAT16.sums), align=LINE
        )
        for quad in range(QUADS_OF_LINE)
    )
    totals = fold_lanes(
        builder, fold_lanes(builder, first, second, 4), fold_lanes(builder, third, fourth, 4), 2
    )
    builder.store(totals, pointer(builder, target, totals.type), align=4)


# Adds up the sums of four quads: (address of sums, address of 16 float32 totals).
store_totals = operation(types.void, (types.int64,) * 2, where_available(_store_totals))
