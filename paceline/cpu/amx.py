"""Intel's matrix instructions (AMX) in compiled code: tiles of 16 rows of 64 bytes, and products of
two of them.

    out[i][j] += sum over k of left[i][k] * right[k][j]

`out` has 16 x 16 numbers in float32; `left` 16 rows of 32 numbers in bfloat16; `right` the 32 rows
of 16 numbers, two rows in each of its own: row r holds right[2 r][j], right[2 r + 1][j] for j = 0,
1, ... Each number of `out` is made by itself and in one order (Intel's manual, TDPBF16PS): the
products at even k are added up, and those at odd k, then both sums to one another, then to `out`.
There are eight tiles, 0 to 7. Addresses and strides are in bytes.
"""

from __future__ import annotations

import ctypes
import platform
from functools import cache
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types

from paceline.cpu.avx512_dot import BFloat16
from paceline.cpu.simd_f32x8 import operation, pick, pointer
from paceline.util.machine import instruction_flags

SIDE = 16  # rows of a tile, and words in each of them
ROW = 64  # bytes
TILE = SIDE * ROW
_NEEDED = {"amx_tile", "amx_bf16", "avx512f", "avx512_bf16"}
# arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA of Linux
_SYSTEM_CALL, _ASK_PERMISSION, _TILE_DATA = (158, 0x1023, 18)


_BYTE, _WORD, _INDEX = ir.IntType(8), ir.IntType(32), ir.IntType(64)
_WORDS = ir.VectorType(_WORD, SIDE)
_NUMBERS, _ROUNDED, _HALVES = (
    ir.VectorType(kind, SIDE) for kind in (ir.FloatType(), BFloat16(), ir.IntType(16))
)


@cache
def available() -> bool:
    """Whether this processor has the instructions, and the system lets this process use them."""
    if (
        platform.system() != "Linux"
        or platform.machine() != "x86_64"
        or not set(instruction_flags()) >= _NEEDED
    ):
        return False
    system_call = ctypes.CDLL(None).syscall
    return (
        int(
            system_call(
                ctypes.c_long(_SYSTEM_CALL),
                ctypes.c_long(_ASK_PERMISSION),
                ctypes.c_long(_TILE_DATA),
            )
        )
        == 0
    )


def _instruction(name: str, *tiles: int, operands: int = 0) -> Any:
    """Return a function of compiled code: an instruction on tiles that it names, an address and
    a stride, if it takes any.
    """
    kinds = [*[_BYTE] * len(tiles), _BYTE.as_pointer(), _INDEX][: len(tiles) + operands]

    def emit(builder: Any, *values: Any) -> None:
        called = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(ir.VoidType(), kinds), f"llvm.x86.{name}"
        )
        given = [pointer(builder, values[0], _BYTE), *values[1:]] if values else []
        builder.call(called, [*[ir.Constant(_BYTE, tile) for tile in tiles], *given])

    return operation(types.void, (types.int64,) * operands, emit)


def _transpose(builder: Any, source: Any, stride: Any, target: Any, target_stride: Any) -> None:
    """Read all rows; then at every distance 8, 4, 2, 1 let two rows exchange what lies so far
    apart; write.
    """

    def row(base: Any, step: Any, number: int) -> Any:
        return pointer(
            builder, builder.add(base, builder.mul(step, ir.Constant(_INDEX, number))), _WORDS
        )

    rows = [builder.load(row(source, stride, number), align=4) for number in range(SIDE)]
    for distance in (8, 4, 2, 1):
        low = [place ^ distance | SIDE if place & distance else place for place in range(SIDE)]
        high = [place | SIDE if place & distance else place ^ distance for place in range(SIDE)]
        for number in range(SIDE):
            if not number & distance:
                pair = rows[number], rows[number + distance]
                rows[number], rows[number + distance] = (
                    pick(builder, *pair, low),
                    pick(builder, *pair, high),
                )
    for number, words in enumerate(rows):
        builder.store(words, row(target, target_stride, number), align=4)


def _round(builder: Any, source: Any, target: Any, added: Any = None) -> None:
    numbers = builder.load(pointer(builder, source, _NUMBERS), align=4)
    if added is not None:
        numbers = builder.fadd(numbers, builder.load(pointer(builder, added, _NUMBERS), align=4))
    kind = ir.FunctionType(_ROUNDED, [_NUMBERS])
    called = cgutils.get_or_insert_function(
        builder.module, kind, "llvm.x86.avx512bf16.cvtneps2bf16.512"
    )
    rounded = builder.bitcast(builder.call(called, [numbers]), _HALVES)
    builder.store(rounded, pointer(builder, target, _HALVES), align=2)


# all tiles, by what lies at an address: see `configuration`
configure = _instruction("ldtilecfg", operands=1)
# without it the system keeps the tiles at each change of threads
release = _instruction("tilerelease")
# of 16 x 16 words: source, its stride, target, its stride
transpose = operation(types.void, (types.int64,) * 4, _transpose)
# of 16 numbers, to bfloat16: source, target
round_row = operation(types.void, (types.int64,) * 2, _round)
# of two such rows: source, target, the other
round_sum = operation(types.void, (types.int64,) * 3, _round)


def zero(tile: int) -> Any:
    """Return the instruction that sets a tile to zero."""
    return _instruction("tilezero", tile)


def load(tile: int) -> Any:
    """Return the instruction (address, stride) that reads a tile."""
    return _instruction("tileloadd64", tile, operands=2)


def store(tile: int) -> Any:
    """Return the instruction (address, stride) that writes a tile."""
    return _instruction("tilestored64", tile, operands=2)


def add_product(out: int, left: int, right: int) -> Any:
    """Return the instruction that adds the product of two tiles to a third."""
    return _instruction("tdpbf16ps", out, left, right)


def configuration() -> bytes:
    """Return what `configure` reads: all eight tiles of full size."""
    return bytes([1, *[0] * 15, *[ROW, 0] * 8, *[0] * 16, *[SIDE] * 8, *[0] * 8])
