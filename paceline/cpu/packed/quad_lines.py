"""Emit code that unpacks one block from each of four rows to interleaved chunks.

Four rows of a weight form a quad. The code arranges the numbers of a quad in lines of 64 bytes. A
line contains one chunk (eight numbers) of each row. For example, rows a, b, c and d begin with
these lines:

    line 0:  a0 ... a7    b0 ... b7    c0 ... c7    d0 ... d7
    line 1:  a8 ... a15   b8 ... b15   c8 ... c15   d8 ... d15

Some formats store four-bit integers. In these formats, the numbers of a row that share a scale and
a minimum have at most 16 different values. The code computes and rounds each value only once. It
stores the values of all four rows in a table, which fills two registers. One instruction then looks
up the 32 numbers of a line. In other formats, the code converts each integer separately.

Rounding treats subnormal numbers as zeros, as the dot products do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from llvmlite import ir
from numba.core import cgutils

from paceline.cpu.avx512_dot import LINE
from paceline.cpu.bf16_pack import round_pair
from paceline.cpu.emit import pick
from paceline.cpu.linear.unpack_call import PART
from paceline.cpu.packed.factors import Factors
from paceline.cpu.packed.reading import (
    BYTE,
    HALVES,
    LANES,
    NIBBLES,
    NUMBERS,
    WORDS,
    NibbleGroup,
    PlainReader,
    Reader,
    constant,
    join,
    load,
)

QUAD = 4  # rows in a quad
HALF_LINES = 2  # lines in half a part
_CHUNK = LANES // HALF_LINES  # numbers in a chunk
_ROWS = tuple(range(QUAD))
_SHIFTED = 1 << 24  # factor by which a byte's value grows as the highest byte of a word
_LINE_BYTES = ir.VectorType(BYTE, LINE)
_LINE_WORDS = ir.VectorType(ir.IntType(32), LANES)
Lines = Iterator[tuple[int, Any]]  # index of each line in the blocks, and its content


def emit_lines(
    builder: Any, reader: Reader | PlainReader, blocks: Sequence[Any], parts: int
) -> Lines:
    """Emit instructions that unpack four blocks, one per row, to lines of 64 bytes.

    Each line contains eight numbers of each row. The generator emits the instructions for a line
    just before it yields the line. The order of the lines depends on the block format.

    Args:
        builder: LLVM builder.
        reader: Reader of the block format.
        blocks: Addresses of the four blocks.
        parts: Number of parts in a block. A part is 32 numbers.
    Yields:
        Index of the line in the blocks, and LLVM vector with the line.
    """
    if isinstance(reader, PlainReader):
        rows = [round_pair(builder, *reader.numbers(builder, block)) for block in blocks]
        yield from enumerate(_interleaved(builder, rows))
        return
    factors = reader.factors(builder, blocks)
    if reader.codes:
        yield from _look_up(builder, reader, blocks, factors)
        return
    factors = factors.scaled(builder, 1 / _SHIFTED)
    for part in range(parts):
        pairs = [reader.integers(builder, blocks[row : row + 2], part) for row in range(0, QUAD, 2)]
        yield from _convert(builder, pairs, factors, part)


def _look_up(builder: Any, reader: Reader, blocks: Sequence[Any], factors: Factors) -> Lines:
    kind = ir.FunctionType(HALVES, [HALVES] * 3)
    look_up = cgutils.get_or_insert_function(
        builder.module, kind, "llvm.x86.avx512.vpermi2var.hi.512"
    )
    tables: dict[int, list[Any]] = {}
    for group in reader.groups:
        for half, entries in _entries(builder, blocks, group):
            index = half // factors.group
            if index not in tables:
                tables[index] = _table(builder, reader.codes, factors, half)
            for number in range(HALF_LINES):
                lanes = [
                    LANES * row + _CHUNK * number + lane for row in _ROWS for lane in range(_CHUNK)
                ]
                # The instruction uses only the low bits of an index, so any byte may follow.
                doubled = pick(builder, entries, entries, [lane for lane in lanes for _ in (0, 1)])
                first, second = tables[index]
                line = builder.call(look_up, [first, builder.bitcast(doubled, HALVES), second])
                yield half * HALF_LINES + number, line


def _entries(builder: Any, blocks: Sequence[Any], group: NibbleGroup) -> list[tuple[int, Any]]:
    """Emit instructions that compute where `_table` contains each number of a row.

    A block stores each number as a four-bit code. In row r, the number with code c is at this index
    in the table:

        index = 4 * c + r

    The 16 bytes that `group` describes contain the codes of two half parts. A half part is 16
    consecutive numbers of a row.

    Args:
        builder: LLVM builder.
        blocks: Addresses of the four blocks, one per row.
        group: Location of the two half parts in a block.
    Returns:
        For each of the two half parts: the index of the half part in the block, and a vector of 64
        bytes. Byte 16 * r + i of the vector is the table index of number i in row r.
    """
    rows = [load(builder, block, group.offset, NIBBLES) for block in blocks]
    stored = join(builder, join(builder, *rows[:2]), join(builder, *rows[2:]))
    words, two = builder.bitcast(stored, HALVES), constant(2, HALVES)
    numbers = ir.Constant(_LINE_BYTES, [row for row in _ROWS for _ in range(LANES)])
    return [
        (
            half,
            builder.or_(
                builder.and_(builder.bitcast(moved, _LINE_BYTES), constant(60, _LINE_BYTES)),
                numbers,
            ),
        )
        for half, moved in (
            (group.low, builder.shl(words, two)),
            (group.high, builder.lshr(words, two)),
        )
    ]


def _table(builder: Any, codes: tuple[int, ...], factors: Factors, half: int) -> list[Any]:
    """Emit instructions that compute the number for each code in each of four rows.

    A block stores each number as a four-bit code. Because every row has its own scale and minimum,
    a code represents a different number in each row. In row r, code c represents this number:

        scale of row r * codes[c] + minimum of row r

    The instructions round the numbers to bfloat16. They store the number for code c and row r at
    index 4 * c + r of the table.

    Args:
        builder: LLVM builder.
        codes: Decoded value of each code.
        factors: Scales and minimums of the four blocks.
        half: Index of a half part (16 numbers). The table uses the scales and minimums of this half
            part.
    Returns:
        The table, as two vectors of 32 numbers each.
    """
    numbers = [
        factors.apply(builder, _floats(codes[first : first + LANES // QUAD]), half, _ROWS * QUAD)
        for first in range(0, LANES, LANES // QUAD)
    ]
    return [round_pair(builder, *numbers[first : first + 2]) for first in (0, 2)]


def _floats(codes: tuple[int, ...]) -> Any:
    numbers = [ir.Constant(ir.FloatType(), float(code)) for code in codes for _ in _ROWS]
    return ir.Constant(NUMBERS, numbers)


def _convert(builder: Any, pairs: Sequence[Any], factors: Factors, part: int) -> Lines:
    """Emit instructions that convert one part (32 numbers) of four rows to lines.

    Args:
        builder: LLVM builder.
        pairs: Two vectors of signed bytes with the integers of the part. The first vector contains
            rows 0 and 1, the second rows 2 and 3.
        factors: Scales and minimums of the four blocks. The scales are divided by 2 ** 24.
        part: Index of the part.
    Yields:
        Index of the line in the blocks, and LLVM vector with the line.
    """
    for number in range(2 * HALF_LINES):
        half = 2 * part + number // HALF_LINES
        numbers = []
        for first, pair in zip(range(0, QUAD, 2), pairs, strict=True):
            lanes = [
                PART * row + _CHUNK * number + lane for row in (0, 1) for lane in range(_CHUNK)
            ]
            floats = builder.sitofp(_shifted(builder, pair, lanes), NUMBERS)
            blocks = (first,) * _CHUNK + (first + 1,) * _CHUNK
            numbers.append(factors.apply(builder, floats, half, blocks))
        yield 2 * HALF_LINES * part + number, round_pair(builder, *numbers)


def _shifted(builder: Any, integers: Any, lanes: list[int]) -> Any:
    """Emit instructions that widen 16 signed bytes to words, multiplied by 2 ** 24.

    Each selected byte becomes the highest byte of a 32-bit word, whose other bytes are zeros. This
    multiplies the byte by 2 ** 24 and preserves its sign. `emit_lines` divides the scales by the
    same factor.

    Args:
        builder: LLVM builder.
        integers: Vector of signed bytes.
        lanes: Lane of each byte to select, [16].
    Returns:
        Vector of 16 words with 32 bits each.
    """
    zero = integers.type.count
    spread_lanes = [source for lane in lanes for source in (zero, zero, zero, lane)]
    zeros = ir.Constant(integers.type, [0] * zero)
    return builder.bitcast(pick(builder, integers, zeros, spread_lanes), WORDS)


def _interleaved(builder: Any, rows: Sequence[Any]) -> list[Any]:
    """Emit instructions that arrange 32 numbers of each of four rows in four lines."""
    rows = [builder.bitcast(row, _LINE_WORDS) for row in rows]
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
