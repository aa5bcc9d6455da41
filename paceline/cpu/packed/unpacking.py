"""Unpack blocks of packed weights to bfloat16, row by row or in quads.

A quad consists of four rows whose numbers are interleaved, as `quad_lines` describes. The kernel in
`quads` multiplies by quads.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, partial
from typing import Any

import numba.extending
from llvmlite import ir
from numba.core import cgutils

from paceline.cpu.avx512_dot import LINE, available, where_available
from paceline.cpu.bf16_pack import round_pair
from paceline.cpu.emit import fetch, narrow, pointer
from paceline.cpu.linear.unpack_call import (
    PART_BYTES,
    UNPACK_CALL,
    UnpackCall,
    address_of_row,
    read_unpack_call,
)
from paceline.cpu.packed.formats import BlockLayout, of_format
from paceline.cpu.packed.quad_lines import QUAD, emit_lines
from paceline.cpu.packed.reading import (
    HALVES,
    INDEX,
    LANES,
    NUMBERS,
    WORDS,
    PlainReader,
    halves_of,
    join,
    plus,
)
from paceline.cpu.thread_team import TeamJob
from paceline.util.compiled import inlined


def _rounded(builder: Any, low: Any, high: Any, exact: bool) -> Any:
    """Emit instructions that round 32 float32 numbers to bfloat16.

    The instructions round to nearest, with ties to even.

    Args:
        builder: LLVM builder.
        low: Vector with the first 16 numbers.
        high: Vector with the last 16 numbers.
        exact: Whether to preserve subnormal numbers. Matrix products do not need subnormal numbers,
            because the processor's bfloat16 instructions treat them as zeros.
    """
    if available() and not exact:
        return round_pair(builder, low, high)
    return join(builder, narrow(builder, low), narrow(builder, high))


def _emit_row(
    builder: Any, blocks: BlockLayout, source: Any, num_parts: Any, target: Any, exact: bool
) -> None:
    count = builder.udiv(num_parts, ir.Constant(INDEX, blocks.parts))
    with cgutils.for_range(builder, count, intp=INDEX) as loop:
        block = builder.add(source, builder.mul(loop.index, ir.Constant(INDEX, blocks.bytes)))
        size = blocks.parts * PART_BYTES
        out = builder.add(target, builder.mul(loop.index, ir.Constant(INDEX, size)))
        for part, numbers in enumerate(_numbers(builder, blocks, block)):
            address = pointer(builder, plus(builder, out, part * PART_BYTES), HALVES)
            rounded = _rounded(builder, numbers[0], numbers[1], exact)
            builder.store(rounded, address, align=1)


def _numbers(builder: Any, blocks: BlockLayout, block: Any) -> Iterator[list[Any]]:
    """Emit instructions that decode a block; yield two float32 vectors per part."""
    if isinstance(blocks.reader, PlainReader):
        yield blocks.reader.numbers(builder, block)
        return
    factors = blocks.reader.factors(builder, [block])
    for part in range(blocks.parts):
        integers = halves_of(builder, blocks.reader.integers(builder, [block], part))
        floats = [builder.sitofp(builder.sext(half, WORDS), NUMBERS) for half in integers]
        yield [
            factors.apply(builder, half, 2 * part + number, (0,) * LANES)
            for number, half in enumerate(floats)
        ]


def _emit_quad(builder: Any, blocks: BlockLayout, *operands: Any) -> None:
    sources, num_parts, target, line_step, ahead = operands
    count = builder.udiv(num_parts, ir.Constant(INDEX, blocks.parts))
    lines = blocks.parts * PART_BYTES * QUAD // LINE
    with cgutils.for_range(builder, count, intp=INDEX) as loop:
        offset = builder.mul(loop.index, ir.Constant(INDEX, blocks.bytes))
        four = [builder.add(builder.extract_value(sources, row), offset) for row in range(QUAD)]
        # Prefetching all rows of a quad at once would delay the loads of the current blocks.
        for block in four:
            for distance in range(0, blocks.bytes, LINE):
                fetch(builder, builder.add(plus(builder, block, distance), ahead), 2)
        first = builder.mul(loop.index, ir.Constant(INDEX, lines))
        out = builder.add(target, builder.mul(first, line_step))
        for number, line in emit_lines(builder, blocks.reader, four, blocks.parts):
            address = builder.add(out, builder.mul(line_step, ir.Constant(INDEX, number)))
            builder.store(line, pointer(builder, address, line.type), align=LINE)


@numba.extending.intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
def _unpack_row(context: Any, type_id: Any, source: Any, num_parts: Any, target: Any) -> Any:
    """Unpack a row to bfloat16, including subnormal numbers.

    Arguments that compiled callers pass:
        type_id: Id of the block format.
        source: Address of the row's first block.
        num_parts: Number of parts (32 numbers each).
        target: Address at which to write the numbers.
    """
    return of_format(partial(_emit_row, exact=True), type_id, source, num_parts, target)


@numba.extending.intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
def _unpack_quad(
    context: Any,
    type_id: Any,
    sources: Any,
    num_parts: Any,
    target: Any,
    line_step: Any,
    ahead: Any,
) -> Any:
    """Unpack a quad: four rows whose numbers are interleaved in lines of 64 bytes.

    Arguments that compiled callers pass:
        type_id: Id of the block format.
        sources: Address of each row's first block.
        num_parts: Number of parts (32 numbers each) per row.
        target: Address at which to write the quad's first line.
        line_step: Distance between consecutive lines of the quad, in bytes.
        ahead: Distance from the blocks to the blocks to prefetch, in bytes.
    """
    operands = (sources, num_parts, target, line_step, ahead)
    return of_format(where_available(_emit_quad), type_id, *operands)


@inlined
def _row_at(call: UnpackCall, row: int) -> int:
    """Return the address of the first block of a row."""
    return address_of_row(call.source, call.row_bytes, call.order, row)


@cache
def row_job(type_id: int) -> TeamJob:
    """Return the job that unpacks the rows of an `UnpackCall`, one at a time.

    Each block format has a separate job. The job preserves subnormal numbers.
    """

    # The closure refers to a plain number, which identifies the format's code in the code cache.
    def work(address: int) -> int:
        call = read_unpack_call(address)
        target = call.target
        for row in range(call.first, call.first + call.count):
            _unpack_row(type_id, _row_at(call, row), call.num_parts, target)
            target += call.num_parts * PART_BYTES
        return 1

    return TeamJob(work, UNPACK_CALL)


@cache
def quad_job(type_id: int) -> TeamJob:
    """Return the job that unpacks the rows of an `UnpackCall`, four at a time.

    Each block format has a separate job. Four rows form a quad, whose numbers are interleaved in
    lines of 64 bytes. Consecutive quads are 64 bytes apart, and consecutive lines of a quad are
    `line_step` bytes apart:

        address of line i of quad q = target + i * line_step + 64 * q
    """

    def work(address: int) -> int:
        call = read_unpack_call(address)
        target = call.target
        for row in range(call.first, call.first + call.count, QUAD):
            sources = (
                _row_at(call, row),
                _row_at(call, row + 1),
                _row_at(call, row + 2),
                _row_at(call, row + 3),
            )
            _unpack_quad(type_id, sources, call.num_parts, target, call.line_step, call.ahead)
            target += LINE
        return 1

    return TeamJob(work, UNPACK_CALL)
