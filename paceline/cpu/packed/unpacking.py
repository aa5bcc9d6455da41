"""Unpack blocks to bfloat16 values, row by row or in quads (see `quads`).

A quad consists of four rows with interleaved values: a chunk of 16 bytes from each row in turn.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numba.extending
from llvmlite import ir
from numba.core import cgutils, types

from paceline.backend.block_formats import BLOCK_FORMATS, BlockFormat
from paceline.cpu import avx512_dot, simd_f32x8
from paceline.cpu.avx512_dot import LINE, where_available
from paceline.cpu.bf16_pack import round_pair
from paceline.cpu.emit import Emit, pick, pointer, words
from paceline.cpu.linear.unpack_call import (
    PART,
    PART_BYTES,
    UNPACK_CALL,
    UnpackCall,
    read_unpack_call,
)
from paceline.cpu.packed import reading, super_blocks
from paceline.cpu.packed.reading import (
    HALVES,
    INDEX,
    LANES,
    NUMBERS,
    WORDS,
    Reader,
    plus,
)
from paceline.cpu.thread_team import TeamJob
from paceline.util.compiled import inlined, load_int64

QUAD = 4  # rows
_NUMBER_BYTES = 8  # of a row's number in `order`
_LANES_OF_LINE = ir.VectorType(ir.IntType(32), LANES)
_READERS: dict[str, Reader] = {
    "F32": reading.F32,
    "F16": reading.F16,
    "Q4_0": reading.Q4_0(),
    "Q4_1": reading.Q4_1(),
    "Q5_0": reading.Q5_0(),
    "Q5_1": reading.Q5_1(),
    "Q8_0": reading.Q8_0(),
    "Q4_K": super_blocks.Q4_K(),
    "Q5_K": super_blocks.Q5_K(),
    "Q6_K": super_blocks.Q6_K(),
    "IQ4_NL": reading.IQ4_NL(),
    "IQ4_XS": super_blocks.IQ4_XS(),
}


def _rounded(builder: Any, low: Any, high: Any, exact: bool) -> Any:
    """Emit code that rounds 32 float32 numbers to bfloat16: nearest, ties to even.

    Args:
        low: First 16 numbers.
        high: Last 16 numbers.
        exact: Whether to preserve subnormal numbers, which the dot products treat as zeros.
    """
    if avx512_dot.available() and not exact:
        return round_pair(builder, low, high)
    narrow = ir.VectorType(ir.IntType(16), LANES)
    first, second = (builder.trunc(_bits(builder, half), narrow) for half in (low, high))
    return pick(builder, first, second, list(range(PART)))


def _bits(builder: Any, numbers: Any) -> Any:
    bits = builder.bitcast(numbers, WORDS)
    odd = builder.and_(builder.lshr(bits, words(16, LANES)), words(1, LANES))
    rounded = builder.add(bits, builder.add(odd, words(0x7FFF, LANES)))
    unordered = builder.fcmp_unordered("uno", numbers, numbers)
    return builder.select(unordered, words(0x7FC0, LANES), builder.lshr(rounded, words(16, LANES)))


def _part(builder: Any, reader: Reader, block: Any, scales: Any, part: int, exact: bool) -> Any:
    """Emit the 32 values of a part as bfloat16 bits."""
    if reader.num_levels and avx512_dot.available() and not exact:
        table = _table(builder, reader, scales, part)
        kind = ir.FunctionType(HALVES, [HALVES] * 2)
        permute = cgutils.get_or_insert_function(
            builder.module, kind, "llvm.x86.avx512.permvar.hi.512"
        )
        return builder.call(permute, [table, reader.indices(builder, block, part)])
    first, second = (
        reader.numbers(builder, scales, _as_float32(builder, values), part, half)
        for half, values in enumerate(reader.values(builder, block, part))
    )
    return _rounded(builder, first, second, exact)


def _table(builder: Any, reader: Reader, scales: Any, part: int) -> Any:
    """Emit a table of the value of every integer; tables of 16 values are repeated."""
    float32 = ir.FloatType()
    first, second = (
        reader.numbers(
            builder,
            scales,
            ir.Constant(NUMBERS, [ir.Constant(float32, float(code)) for code in codes]),
            part,
            half,
        )
        for half, codes in enumerate((reader.codes[:LANES], reader.codes[-LANES:]))
    )
    return round_pair(builder, first, second)


def _as_float32(builder: Any, values: Any) -> Any:
    if values.type == WORDS:
        return builder.sitofp(values, NUMBERS)
    return values if values.type == NUMBERS else builder.fpext(values, NUMBERS)


class _Blocks(NamedTuple):
    """Description of the blocks in a row, for a kernel that iterates over them.

    Attributes:
        reader: Reader of the format.
        parts: Number of parts in a block.
        bytes: Size of a block in bytes.
    """

    reader: Reader
    parts: int
    bytes: int

    @staticmethod
    def of(block_format: BlockFormat) -> _Blocks:
        """Return the blocks of a format; plain numbers count as blocks of 32."""
        numbers = max(block_format.numbers, PART)
        return _Blocks(
            _READERS[block_format.name], numbers // PART, block_format.row_bytes(numbers)
        )


def _emit_row(builder: Any, blocks: _Blocks, source: Any, num_parts: Any, target: Any) -> None:
    count = builder.udiv(num_parts, ir.Constant(INDEX, blocks.parts))
    with cgutils.for_range(builder, count, intp=INDEX) as loop:
        block = builder.add(source, builder.mul(loop.index, ir.Constant(INDEX, blocks.bytes)))
        size = blocks.parts * PART_BYTES
        out = builder.add(target, builder.mul(loop.index, ir.Constant(INDEX, size)))
        scales = blocks.reader.scales(builder, block)
        for part in range(blocks.parts):
            numbers = _part(builder, blocks.reader, block, scales, part, True)
            address = pointer(builder, plus(builder, out, part * PART_BYTES), HALVES)
            builder.store(numbers, address, align=1)


def _emit_quad(builder: Any, blocks: _Blocks, *operands: Any) -> None:
    *sources, num_parts, target = operands
    count = builder.udiv(num_parts, ir.Constant(INDEX, blocks.parts))
    with cgutils.for_range(builder, count, intp=INDEX) as loop:
        offset = builder.mul(loop.index, ir.Constant(INDEX, blocks.bytes))
        four = [builder.add(source, offset) for source in sources]
        size = blocks.parts * PART_BYTES * QUAD
        out = builder.add(target, builder.mul(loop.index, ir.Constant(INDEX, size)))
        scales = [blocks.reader.scales(builder, block) for block in four]
        for part in range(blocks.parts):
            rows = [
                _part(builder, blocks.reader, block, own, part, False)
                for block, own in zip(four, scales, strict=True)
            ]
            for number, line in enumerate(_interleaved(builder, rows)):
                address = plus(builder, out, (part * QUAD + number) * LINE)
                builder.store(line, pointer(builder, address, line.type), align=LINE)


def _of_format(emit: Emit, type_id: Any, *operands: Any) -> Any:
    """Return the typed emitter for the format whose id is passed as a constant."""
    blocks = _Blocks.of(BLOCK_FORMATS[type_id.literal_value])

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        emit(builder, blocks, *values[1:])
        return context.get_dummy_value()

    return types.void(type_id, *operands), generate


@numba.extending.intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
def _unpack_row(context: Any, type_id: Any, source: Any, num_parts: Any, target: Any) -> Any:
    """Unpack a row: format id, blocks, number of parts, target."""
    return _of_format(_emit_row, type_id, source, num_parts, target)


@numba.extending.intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
def _unpack_quad(
    context: Any, type_id: Any, a: Any, b: Any, c: Any, d: Any, num_parts: Any, target: Any
) -> Any:
    """Unpack four rows, with blocks at `a` to `d`, into interleaved chunks."""
    return _of_format(where_available(_emit_quad), type_id, a, b, c, d, num_parts, target)


def _interleaved(builder: Any, rows: list[Any]) -> list[Any]:
    """Emit four cache lines, each with one chunk from every row."""
    rows = [builder.bitcast(row, _LANES_OF_LINE) for row in rows]
    halves = [
        [
            pick(builder, first, second, [*lanes, *(LANES + lane for lane in lanes)])
            for lanes in (range(LANES // 2), range(LANES // 2, LANES))
        ]
        for first, second in (rows[:2], rows[2:])
    ]
    even = [*range(4), *range(8, 12), *range(16, 20), *range(24, 28)]
    odd = [lane + 4 for lane in even]
    return [
        pick(builder, halves[0][half], halves[1][half], lanes)
        for half in (0, 1)
        for lanes in (even, odd)
    ]


@inlined
def _row_at(call: UnpackCall, row: int) -> int:
    """Return the address of a row's first block."""
    number = row if call.order == 0 else load_int64(call.order + _NUMBER_BYTES * row)
    return call.source + number * call.row_bytes


@cache
def row_job(type_id: int) -> TeamJob:
    """Return the job that unpacks rows of a format, as an `UnpackCall` describes.

    All values are exact, including subnormal numbers.
    """

    # The closure holds a plain number, which identifies the stored code of a format.
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
    """Return the job that unpacks quads of a format, as an `UnpackCall` describes."""

    def work(address: int) -> int:
        call = read_unpack_call(address)
        target, size = call.target, call.row_bytes
        for row in range(call.first, call.first + call.count, QUAD):
            a, b = _row_at(call, row), _row_at(call, row + 1)
            c, d = _row_at(call, row + 2), _row_at(call, row + 3)
            if call.ahead:
                for line in range(a + call.ahead, a + call.ahead + QUAD * size, LINE):
                    simd_f32x8.prefetch_second(line)
            _unpack_quad(type_id, a, b, c, d, call.num_parts, target)
            target += QUAD * call.num_parts * PART_BYTES
        return 1

    return TeamJob(work, UNPACK_CALL)
