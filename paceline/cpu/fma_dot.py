"""Emit code that multiplies float32 rows by the weights of four outputs.

A dot product is computed in a vector of eight lanes. Lane l adds the products of elements l, l + 8,
l + 16, and so on, with fused multiply-adds. Three steps then add the lanes:

    lanes l and l + 4, for l = 0 to 3
    lanes l and l + 2, for l = 0 and 1
    lanes 0 and 1

All variants in this module use this order, so the number of rows does not change the result.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from llvmlite import ir
from numba.core import cgutils, types

from paceline.cpu.emit import fetch, floats, multiply_add, operation
from paceline.cpu.memory import BFLOAT16, FLOAT32, FLOAT_BYTES, HALF_BYTES, LINE_BYTES, VECTOR_BYTES
from paceline.cpu.simd_f32x8 import WIDTH, emit_load, emit_load_bfloat16, emit_store_sums

OUTPUTS = 4  # outputs per call, whose results one instruction stores
MAX_ROWS = 3  # rows per call; with four outputs, their sums fill the registers of AVX2
_INDEX = ir.IntType(64)
_ZEROS = floats(0.0, WIDTH)


def multiply_rows(kind: int, max_rows: int = MAX_ROWS) -> Any:
    """Return an operation that multiplies rows by the weights of `OUTPUTS` outputs.

    Arguments of the operation (sizes and distances are in bytes):
        num_rows: Number of rows, 1 to `max_rows`.
        rows: Address of the float32 rows.
        row_bytes: Size of a row, a multiple of 32.
        weight: Address of the outputs' weights.
        stride: Distance between the weights of consecutive outputs.
        out: Address at which to write the float32 results.
        out_stride: Distance between the results of consecutive rows.
        ahead: Distance from `weight` to the weights to prefetch. 0 prefetches none.

    Args:
        kind: Number format of the weights, `FLOAT32` or `BFLOAT16`.
        max_rows: Maximum number of rows, at most `MAX_ROWS`.
    """

    def emit(builder: Any, num_rows: Any, *operands: Any) -> None:
        for count in range(1, max_rows + 1):
            with builder.if_then(builder.icmp_signed("==", num_rows, ir.Constant(_INDEX, count))):
                _multiply(builder, count, kind, _FmaOperands(*operands))

    return operation(types.void, (types.int64,) * 8, emit)


class _FmaOperands(NamedTuple):
    """The arguments of a `multiply_rows` operation, except `num_rows`."""

    rows: Any
    row_bytes: Any
    weight: Any
    stride: Any
    out: Any
    out_stride: Any
    ahead: Any


def _multiply(
    builder: Any,
    num_rows: int,
    kind: int,
    operands: _FmaOperands,
) -> None:
    rows, row_bytes, weight, stride, out, out_stride, ahead = operands
    load_weight = emit_load_bfloat16 if kind == BFLOAT16 else emit_load
    step = VECTOR_BYTES // FLOAT_BYTES * (FLOAT_BYTES if kind == FLOAT32 else HALF_BYTES)
    sums = [
        [cgutils.alloca_once_value(builder, _ZEROS) for _ in range(OUTPUTS)]
        for _ in range(num_rows)
    ]
    starts = [_at(builder, weight, output, stride) for output in range(OUTPUTS)]
    num_steps = builder.udiv(row_bytes, ir.Constant(_INDEX, VECTOR_BYTES))
    with cgutils.for_range(builder, num_steps, intp=_INDEX) as loop:
        offset = builder.mul(loop.index, ir.Constant(_INDEX, step))
        with builder.if_then(builder.icmp_signed("!=", ahead, ir.Constant(_INDEX, 0))):
            in_line = builder.urem(offset, ir.Constant(_INDEX, LINE_BYTES))
            with builder.if_then(builder.icmp_signed("==", in_line, ir.Constant(_INDEX, 0))):
                for start in starts:
                    fetch(builder, builder.add(builder.add(start, ahead), offset))
        row_offset = builder.mul(loop.index, ir.Constant(_INDEX, VECTOR_BYTES))
        vectors = [
            emit_load(builder, builder.add(_at(builder, rows, row, row_bytes), row_offset))
            for row in range(num_rows)
        ]
        for output, start in enumerate(starts):
            numbers = load_weight(builder, builder.add(start, offset))
            for vector, row_sums in zip(vectors, sums, strict=True):
                total = multiply_add(builder, vector, numbers, builder.load(row_sums[output]))
                builder.store(total, row_sums[output])
    for row, row_sums in enumerate(sums):
        totals = [builder.load(total) for total in row_sums]
        emit_store_sums(builder, _at(builder, out, row, out_stride), *totals)


def _at(builder: Any, base: Any, index: int, stride: Any) -> Any:
    return builder.add(base, builder.mul(stride, ir.Constant(_INDEX, index)))
