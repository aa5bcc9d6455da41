"""Emit Intel's matrix instructions (AMX).

AMX has eight registers (tiles 0 to 7), each with 16 rows of 64 bytes. The instruction TDPBF16PS
multiplies two tiles and adds the product to a third tile:

    out[i][j] += sum over k of left[i][k] * right[k][j]

The matrices have these shapes:

    out:    16 x 16 float32 values
    left:   16 x 32 bfloat16 values
    right:  32 x 16 bfloat16 values

Each of the 16 rows in the tile of `right` contains two interleaved rows of the matrix. For example,
row 0 of the tile interleaves the rows right[0] and right[1]:

    right[0][0], right[1][0], right[0][1], right[1][1], right[0][2], ...

According to Intel's manual, TDPBF16PS adds in a fixed order. It sums the products at even k and at
odd k separately, adds the two sums, and adds the total to `out`. In this module, strides are in
bytes.
"""

from __future__ import annotations

import ctypes
import platform
from functools import cache
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types

from paceline.cpu.avx512_dot import BFloat16
from paceline.cpu.emit import operation, pick, pointer
from paceline.cpu.memory import FLOAT_BYTES
from paceline.util.machine import instruction_flags

SIDE = 16  # Rows in a tile, and 32-bit words in a row.
ROW = SIDE * FLOAT_BYTES  # Bytes in a row.
TILE = SIDE * ROW  # Bytes in a tile.
NUM_TILES = 8  # Tiles in the processor.
_NEEDED = {"amx_tile", "amx_bf16", "avx512f", "avx512_bf16"}
# Linux: arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA.
_SYSTEM_CALL, _REQUEST_PERMISSION, _TILE_DATA = (158, 0x1023, 18)

_BYTE, _WORD, _INDEX = ir.IntType(8), ir.IntType(32), ir.IntType(64)
_WORDS = ir.VectorType(_WORD, SIDE)
_NUMBERS, _ROUNDED, _HALVES = (
    ir.VectorType(kind, SIDE) for kind in (ir.FloatType(), BFloat16(), ir.IntType(16))
)


@cache
def available() -> bool:
    """Return whether the processor has AMX and Linux lets this process use AMX."""
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
                ctypes.c_long(_REQUEST_PERMISSION),
                ctypes.c_long(_TILE_DATA),
            )
        )
        == 0
    )


def _instruction(name: str, *tiles: int, operands: int = 0) -> Any:
    """Return a function that compiled code calls to run one AMX instruction.

    Args:
        name: Name of the LLVM intrinsic, without its prefix.
        tiles: Indices of the tiles that the instruction uses.
        operands: Number of additional operands: 0, 1 (an address) or 2 (an address and a stride).
    """
    kinds = [*[_BYTE] * len(tiles), _BYTE.as_pointer(), _INDEX][: len(tiles) + operands]

    def emit(builder: Any, *values: Any) -> None:
        called = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(ir.VoidType(), kinds), f"llvm.x86.{name}"
        )
        memory = [pointer(builder, values[0], _BYTE), *values[1:]] if values else []
        builder.call(called, [*[ir.Constant(_BYTE, tile) for tile in tiles], *memory])

    return operation(types.void, (types.int64,) * operands, emit)


def _transpose(builder: Any, source: Any, stride: Any, target: Any, target_stride: Any) -> None:
    """Emit instructions that transpose a matrix of 16 x 16 words in four rounds.

    The rounds use the distances d = 8, 4, 2 and 1. In each round, the instructions exchange these
    words for all rows r and columns c whose numbers do not contain the bit d:

        matrix[r][c + d] and matrix[r + d][c]

    Args:
        builder: LLVM builder.
        source: Address of the matrix.
        stride: Distance between the rows of the matrix, in bytes.
        target: Address at which to write the transposed matrix.
        target_stride: Distance between the rows of the transposed matrix, in bytes.
    """

    def row(base: Any, step: Any, number: int) -> Any:
        return pointer(
            builder, builder.add(base, builder.mul(step, ir.Constant(_INDEX, number))), _WORDS
        )

    rows = [builder.load(row(source, stride, number), align=4) for number in range(SIDE)]
    for distance in (8, 4, 2, 1):
        low = [lane ^ distance | SIDE if lane & distance else lane for lane in range(SIDE)]
        high = [lane | SIDE if lane & distance else lane ^ distance for lane in range(SIDE)]
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


# Sets the shapes of all tiles. Argument: address of a `configuration`.
configure = _instruction("ldtilecfg", operands=1)
# Frees the tiles. Otherwise, the operating system saves them at each thread switch.
release = _instruction("tilerelease")
# Transposes 16 x 16 words. Arguments: source, stride of the source, target, stride of the target.
transpose = operation(types.void, (types.int64,) * 4, _transpose)
# Rounds 16 float32 numbers to bfloat16. Arguments: source, target.
round_row = operation(types.void, (types.int64,) * 2, _round)
# Rounds the sum of two rows of 16 float32 numbers to bfloat16. Arguments: first source, target,
# second source.
round_sum = operation(types.void, (types.int64,) * 3, _round)


def zero(tile: int) -> Any:
    """Return a function for compiled code that sets a tile to zero."""
    return _instruction("tilezero", tile)


def load(tile: int) -> Any:
    """Return a function that loads a tile from memory, given an address and a stride."""
    return _instruction("tileloadd64", tile, operands=2)


def store(tile: int) -> Any:
    """Return a function that stores a tile to memory, given an address and a stride."""
    return _instruction("tilestored64", tile, operands=2)


def add_product(out: int, left: int, right: int) -> Any:
    """Return a function that multiplies two tiles, and adds the product to tile `out`."""
    return _instruction("tdpbf16ps", out, left, right)


def configuration() -> bytes:
    """Return the data that `configure` loads to set up eight full-size tiles."""
    # The data consist of the palette number (1), 15 reserved bytes, the bytes per row of 16 tiles
    # as uint16, and the number of rows of 16 tiles.
    unused = [0] * NUM_TILES
    widths, heights = [ROW, 0] * NUM_TILES, [SIDE] * NUM_TILES
    return bytes([1, *[0] * 15, *widths, *unused * 2, *heights, *unused])


# Offset of the byte in a configuration that contains the number of rows of tile 0.
ROWS_OFFSET = 16 + 2 * 2 * NUM_TILES
