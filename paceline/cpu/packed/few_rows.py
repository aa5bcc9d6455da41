"""Multiply a few rows by a packed weight without storing unpacked weights.

A line contains eight weights from each of four outputs (`quad_lines`). The emitted code multiplies
all rows by a line while the line is in a register. The sums are bit-identical to those of `quads`,
which reads unpacked weights from memory.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numba
import numba.extending
from llvmlite import ir
from numba.core import cgutils

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
from paceline.cpu.emit import fetch, pointer
from paceline.cpu.linear.unpack_call import PART_BYTES, address_of_row
from paceline.cpu.packed.formats import BlockLayout, of_format
from paceline.cpu.packed.quad_lines import QUAD, emit_lines
from paceline.cpu.settings import MAX_FEW_ROWS, PACKED_OUTPUTS_AHEAD
from paceline.cpu.simd_f32x8 import prefetch
from paceline.cpu.thread_team import TeamJob
from paceline.util.compiled import as_pointer, inlined, record_dtype, subroutine

QUADS = 2  # number of quads that are multiplied together
OUTPUTS = QUADS * QUAD


class FewRowsCall:
    """The arguments for multiplying a few rows by the weights of some outputs."""

    rows: int  # Address of the contiguous bfloat16 rows.
    row_bytes: int  # Size of a row in bytes.
    count: int  # Number of rows, 1 to `MAX_FEW_ROWS`.
    first: int  # Index of the first output.
    width: int  # Number of outputs, a multiple of `OUTPUTS`.
    num_parts: int  # Number of parts per output.
    source: int  # Address of the first block in row 0 of the file.
    blocks_row_bytes: int  # Size of a packed row in bytes.
    order: int  # Address of each output's row number in the file, int64; 0 if all are in order.
    outer: int  # Number of outputs in the whole weight.
    following: int  # Address of the blocks to prefetch at the end of the weight; 0 for none.
    sums: int  # Address at which to write the partial sums, one cache line per quad.
    sums_stride: int  # Distance between the partial sums of consecutive rows, in bytes.


FEW_ROWS_CALL = record_dtype(FewRowsCall)


@subroutine
def read_few_rows_call(address: int) -> Any:
    """Return the `FewRowsCall` at an address."""
    return numba.carray(as_pointer(address), 1, FEW_ROWS_CALL)[0]


class _Operands(NamedTuple):
    """Operands of `_multiply_outputs`; `FewRowsCall` describes most of them.

    `ahead` is the address of the blocks to prefetch.
    """

    rows: Any
    row_bytes: Any
    num_parts: Any
    ahead: Any
    sums: Any
    sums_stride: Any


@numba.extending.intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
def _multiply_outputs(context: Any, type_id: Any, count: Any, sources: Any, operands: Any) -> Any:
    """Multiply rows by the weights of eight outputs.

    Arguments that compiled callers pass:
        type_id: Id of the block format.
        count: Number of rows.
        sources: Address of each output's first block.
        operands: Tuple with the fields of `_Operands`.
    """
    return of_format(where_available(_emit_outputs), type_id, count, sources, operands)


def _emit_outputs(builder: Any, layout: BlockLayout, count: Any, sources: Any, values: Any) -> None:
    operands = _Operands(
        *(builder.extract_value(values, index) for index in range(len(_Operands._fields)))
    )
    addresses = [builder.extract_value(sources, index) for index in range(OUTPUTS)]
    for number in range(1, MAX_FEW_ROWS + 1):
        with builder.if_then(builder.icmp_signed("==", count, constant(number))):
            _multiply(builder, layout, number, addresses, operands)


def _multiply(
    builder: Any, layout: BlockLayout, num_rows: int, addresses: list[Any], operands: _Operands
) -> None:
    zeros = ir.Constant(SUMS, [0.0] * SUMS.count)
    totals = [[cgutils.alloca_once(builder, SUMS) for _ in range(num_rows)] for _ in range(QUADS)]
    for own in totals:
        for total in own:
            builder.store(zeros, total)
    starts = [
        builder.add(operands.rows, times(builder, operands.row_bytes, row))
        for row in range(num_rows)
    ]
    num_blocks = builder.udiv(operands.num_parts, constant(layout.parts))
    size = OUTPUTS * layout.bytes  # bytes of all blocks in one iteration
    with cgutils.for_range(builder, num_blocks, intp=INDEX) as loop:
        ahead = builder.add(operands.ahead, times(builder, loop.index, size))
        for distance in range(0, size, LINE):
            fetch(builder, plus(builder, ahead, distance))
        offset = times(builder, loop.index, layout.bytes)
        step = times(builder, loop.index, layout.parts * PART_BYTES)
        sources = [builder.add(start, step) for start in starts]
        blocks = [builder.add(address, offset) for address in addresses]
        lines = [
            emit_lines(builder, layout.reader, blocks[first : first + QUAD], layout.parts)
            for first in range(0, OUTPUTS, QUAD)
        ]
        products = [_LineProducts(builder, sources, own) for own in totals]
        # Each dot product of a quad waits for the previous one, so the two quads alternate.
        for taken, both in enumerate(zip(*lines, strict=True), 1):
            for own_products, (number, line) in zip(products, both, strict=True):
                own_products.add(number, line)
            if num_rows == 1 and taken % (PART_BYTES // CHUNK) == 0:
                # Without the fence, LLVM would load later parts early and run out of registers.
                builder.fence("acq_rel", targetscope="singlethread")
    for row in range(num_rows):
        target = builder.add(operands.sums, times(builder, operands.sums_stride, row))
        for quad, own in enumerate(totals):
            slot = pointer(builder, plus(builder, target, quad * LINE), SUMS)
            builder.store(builder.load(own[row]), slot, align=LINE)


class _LineProducts:
    """Emits instructions that multiply all rows by lines of weights.

    A line contains eight weights from each of four outputs. The caller may add the lines of a block
    in any order. The emitted instructions always multiply by the lines in ascending order.

    Args:
        builder: LLVM builder.
        sources: Address of each row's inputs for the first line.
        totals: Address of each row's partial sums.
    """

    def __init__(self, builder: Any, sources: list[Any], totals: list[Any]) -> None:
        self._builder, self._sources, self._totals = builder, sources, totals
        self._waiting: dict[int, Any] = {}
        self._next_number = 0

    def add(self, number: int, line: Any) -> None:
        """Add a line, and emit the products for all lines that are next in order.

        If a line before it is still missing, the line waits until the missing line has been added.

        Args:
            number: Index of the line in the block.
            line: LLVM vector with the line.
        """
        self._waiting[number] = self._builder.bitcast(line, NUMBERS)
        while self._next_number in self._waiting:
            self._multiply(self._waiting.pop(self._next_number))
            self._next_number += 1

    def _multiply(self, vector: Any) -> None:
        builder, distance = self._builder, self._next_number * CHUNK
        for source, total in zip(self._sources, self._totals, strict=True):
            numbers = repeat(builder, plus(builder, source, distance))
            added = add_products(builder, builder.load(total), vector, numbers)
            builder.store(added, total)


@inlined
def _blocks_of(call: FewRowsCall, output: int) -> int:
    """Return the address of the first block of an output's weights."""
    return address_of_row(call.source, call.blocks_row_bytes, call.order, output)


@inlined
def _fetch_rows(call: FewRowsCall, first: int) -> None:
    """Prefetch the blocks of eight outputs; the file may store the blocks far apart."""
    for output in range(first, first + OUTPUTS):
        source = _blocks_of(call, output)
        for offset in range(0, call.blocks_row_bytes, LINE):
            prefetch(source + offset)


@cache
def few_rows_job(type_id: int) -> TeamJob:
    """Return the job that runs a `FewRowsCall` for the block format `type_id`."""

    def work(address: int) -> int:
        call = read_few_rows_call(address)
        sums = call.sums
        for output in range(call.first, call.first + call.width, OUTPUTS):
            sources = (
                _blocks_of(call, output),
                _blocks_of(call, output + 1),
                _blocks_of(call, output + 2),
                _blocks_of(call, output + 3),
                _blocks_of(call, output + 4),
                _blocks_of(call, output + 5),
                _blocks_of(call, output + 6),
                _blocks_of(call, output + 7),
            )
            ahead = sources[0]
            is_end = output + PACKED_OUTPUTS_AHEAD >= call.outer
            if is_end and call.following:
                past = output + PACKED_OUTPUTS_AHEAD - call.outer
                ahead = call.following + past * call.blocks_row_bytes
            elif not is_end and call.order == 0:
                ahead += PACKED_OUTPUTS_AHEAD * call.blocks_row_bytes
            elif not is_end:
                _fetch_rows(call, output + PACKED_OUTPUTS_AHEAD)
            operands = (
                call.rows,
                call.row_bytes,
                call.num_parts,
                ahead,
                sums,
                call.sums_stride,
            )
            _multiply_outputs(type_id, call.count, sources, operands)
            sums += QUADS * LINE
        return 1

    return TeamJob(work, FEW_ROWS_CALL)
