"""Dot products of short numbers in compiled code, a few for each of sixteen sums in one
instruction.

bfloat16 (AVX512_BF16), 32 products, in float32:

    sum[lane] = (sum[lane] + left[2 lane + 1] * right[2 lane + 1]) + left[2 lane] * right[2 lane]

Each addition rounds once, to the nearest, and numbers too small to be normal count as zero (Intel's
manual, VDPBF16PS).

int8 (AVX512_VNNI), 64 products, in int32, the left ones without a sign (VPDPBUSD), exactly:

    sum[lane] += left[4 lane] * right[4 lane] + ... + left[4 lane + 3] * right[4 lane + 3]

Here an instruction takes a piece of 16 bytes of four rows, and the same of an output of a weight.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

from llvmlite import ir
from numba.core import cgutils, types

from paceline.cpu.simd_f32x8 import Emit, fetch, operation, pick, pointer, spread, widen
from paceline.util.machine import instruction_flags, on_x86

PIECE = 16  # bytes of a row in one instruction
ROWS = 4  # of a block: their pieces fill a vector
LINE = PIECE * ROWS  # bytes of one; memory gives as many at once
OUTPUTS = 8  # of a weight, that are computed together
PARTS = 4  # of what is fetched
ALL = (1 << PARTS) - 1  # of them, as bits
BLOCKS = 3  # of rows that are so at most: with eight outputs they fill the registers
STRIDE = 256  # bytes from the sums of a row to those of the next
_NEEDED = {"avx512f", "avx512bw", "avx512vl"}


class BFloat16(ir.Type):  # type: ignore[misc]
    """What llvmlite has no name for."""

    def _to_string(self) -> str:
        return "bfloat"


class _Numbers(NamedTuple):
    """Numbers of a kind: the instruction that multiplies them, what it belongs to, a vector of
    them, and one of sums.
    """

    instruction: str
    flag: str
    vector: Any
    sums: Any


_INDEX = ir.IntType(64)
_FLOATS, _WORDS = ir.VectorType(ir.FloatType(), 16), ir.VectorType(ir.IntType(32), 16)
_PIECE, _FOUR = ir.VectorType(ir.IntType(32), 4), ir.VectorType(ir.FloatType(), 4)
_HALVES, _BYTES = ir.VectorType(ir.IntType(16), 16), ir.VectorType(ir.IntType(8), 16)
BFLOAT16 = _Numbers(
    "llvm.x86.avx512bf16.dpbf16ps.512", "avx512_bf16", ir.VectorType(BFloat16(), 32), _FLOATS
)
# four numbers a word
INT8 = _Numbers("llvm.x86.avx512.vpdpbusd.512", "avx512_vnni", _WORDS, _WORDS)
ZERO = 128  # what stands for zero on the left of int8


@cache
def available(kind: _Numbers = BFLOAT16) -> bool:
    """Whether this processor has the instructions for a kind of numbers."""
    return on_x86() and set(instruction_flags()) >= {*_NEEDED, kind.flag}


def where_available(emit: Emit, otherwise: Any = None, kind: _Numbers = BFLOAT16) -> Emit:
    """Return `emit`, or on other processors what ends the process: it is compiled there, too, by
    code that asks before.
    """

    def guarded(builder: Any, *values: Any) -> Any:
        if available(kind):
            return emit(builder, *values)
        builder.call(
            cgutils.get_or_insert_function(
                builder.module, ir.FunctionType(ir.VoidType(), []), "llvm.trap"
            ),
            [],
        )
        return otherwise

    return guarded


def multiply_blocks(count: int, outputs: int = OUTPUTS, kind: _Numbers = BFLOAT16) -> Any:
    """Return a function of compiled code: the sums, in float32, of products of `count` blocks of
    rows with outputs of a weight.

    Its arguments: the address of the blocks, in each of which piece k of all four rows lies before
    piece k + 1 of the first; that of the weight; bytes of a row of it, a multiple of 64; the
    address of the sums, `STRIDE` bytes from one row's to the next's; how far on lies the weight
    that is to be fetched meanwhile; and what is fetched of it, a bit for each of its `PARTS`. Where
    `available()` is not, it ends the process.

    Args:
        outputs: a multiple of four; with more than 24 sums in all there are too few registers.
    """

    def emit(
        builder: Any, blocks: Any, weight: Any, size: Any, out: Any, ahead: Any, parts: Any
    ) -> None:
        sums = [
            [cgutils.alloca_once(builder, kind.sums) for _ in range(outputs)] for _ in range(count)
        ]
        for place in (one for block in sums for one in block):
            builder.store(ir.Constant(kind.sums, [0] * 16), place)
        fetched = builder.add(weight, ahead)
        wanted = [
            builder.trunc(builder.lshr(parts, ir.Constant(_INDEX, part)), ir.IntType(1))
            for part in range(PARTS)
        ]
        with cgutils.for_range(
            builder, builder.udiv(size, ir.Constant(_INDEX, LINE)), intp=_INDEX
        ) as loop:
            offset = builder.mul(loop.index, ir.Constant(_INDEX, LINE))
            lines = builder.add(fetched, _times(builder, offset, outputs))
            for line in range(0, outputs, outputs // PARTS):
                with builder.if_then(wanted[line * PARTS // outputs]):
                    for behind in range(outputs // PARTS):
                        fetch(builder, _behind(builder, lines, (line + behind) * LINE), 2)
            for piece in range(LINE // PIECE):
                step = _behind(builder, offset, piece * PIECE)
                rows = [
                    _load(builder, _at(builder, blocks, size, number, step, ROWS), kind)
                    for number in range(count)
                ]
                for output in range(outputs):
                    numbers = _repeat(builder, _at(builder, weight, size, output, step), kind)
                    for pieces, block in zip(rows, sums, strict=True):
                        added = _add_products(
                            builder, kind, builder.load(block[output]), pieces, numbers
                        )
                        builder.store(added, block[output])
        for number, block in enumerate(sums):
            for first in range(0, outputs, 4):
                target = _behind(builder, out, number * ROWS * STRIDE + first * 4)
                _store_totals(
                    builder, target, [builder.load(place) for place in block[first : first + 4]]
                )

    return operation(types.void, (types.int64,) * 6, where_available(emit, kind=kind))


def _behind(builder: Any, address: Any, distance: int) -> Any:
    return builder.add(address, ir.Constant(_INDEX, distance))


def _times(builder: Any, size: Any, number: int) -> Any:
    return builder.mul(size, ir.Constant(_INDEX, number))


def _at(builder: Any, base: Any, size: Any, number: int, offset: Any, rows: int = 1) -> Any:
    """Return where a step of a row, or of `rows` that lie step by step, begins."""
    return builder.add(
        base, _times(builder, builder.add(_times(builder, size, number), offset), rows)
    )


def _load(builder: Any, address: Any, kind: _Numbers) -> Any:
    return builder.load(pointer(builder, address, kind.vector), align=1)


def _repeat(builder: Any, address: Any, kind: _Numbers) -> Any:
    """Read a piece, once for each row of a block."""
    piece = builder.load(pointer(builder, address, _PIECE), align=1)
    return builder.bitcast(pick(builder, piece, piece, [0, 1, 2, 3] * ROWS), kind.vector)


def _add_products(builder: Any, kind: _Numbers, sums: Any, left: Any, right: Any) -> Any:
    function = ir.FunctionType(kind.sums, [kind.sums, kind.vector, kind.vector])
    return builder.call(
        cgutils.get_or_insert_function(builder.module, function, kind.instruction),
        (sums, left, right),
    )


def _store_totals(builder: Any, address: Any, outputs: list[Any]) -> None:
    """Write the totals of four rows and four outputs: of the four lanes of each, l and l + 2 are
    added, then 0 and 1.
    """
    first, second, third, fourth = outputs
    totals = _fold(builder, _fold(builder, first, second, 4), _fold(builder, third, fourth, 4), 2)
    if totals.type == _WORDS:
        totals = builder.sitofp(totals, _FLOATS)
    for row in range(ROWS):
        place = pointer(builder, _behind(builder, address, row * STRIDE), _FOUR)
        builder.store(pick(builder, totals, totals, list(range(row, 16, ROWS))), place, align=4)


def _fold(builder: Any, one: Any, other: Any, size: int) -> Any:
    """Add the second half of each group of `size` lanes of two vectors to the first; the groups
    lie closer then.
    """
    low = [lane for lane in range(32) if lane % size < size // 2]
    halves = (
        pick(builder, one, other, low),
        pick(builder, one, other, [lane + size // 2 for lane in low]),
    )
    return builder.add(*halves) if one.type == _WORDS else builder.fadd(*halves)


def _quantise(builder: Any, source: Any, target: Any, scale: Any) -> None:
    """Sixteen numbers in bfloat16, times `scale`, to the nearest integer: what they have to
    become is within 127 of zero.
    """
    numbers = widen(builder, builder.load(pointer(builder, source, _HALVES), align=2))
    scaled = builder.fmul(numbers, spread(builder, scale, 16))
    above = builder.fadd(scaled, ir.Constant(_FLOATS, [ZERO + 0.5] * 16))
    builder.store(
        builder.trunc(builder.fptoui(above, _WORDS), _BYTES),
        pointer(builder, target, _BYTES),
        align=1,
    )


def _copy(builder: Any, source: Any, target: Any) -> None:
    builder.store(
        builder.load(pointer(builder, source, _PIECE), align=2),
        pointer(builder, target, _PIECE),
        align=2,
    )


copy_piece = operation(types.void, (types.int64,) * 2, _copy)  # source, target
# source, target, scale
quantise_piece = operation(types.void, (types.int64, types.int64, types.float32), _quantise)
