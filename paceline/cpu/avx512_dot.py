"""Emit dot products of bfloat16 numbers with AVX-512 instructions.

The instruction VDPBF16PS of AVX512_BF16 multiplies the numbers of two vectors in pairs. Each vector
contains 32 bfloat16 numbers. The instruction adds two products to each of 16 float32 sums:

    sum[lane] = (sum[lane] + left[2 lane + 1] * right[2 lane + 1]) + left[2 lane] * right[2 lane]

According to Intel's manual, each addition rounds to nearest, and subnormal numbers count as zero.

`row_blocks` packs the rows in blocks of four. A chunk is 16 bytes (eight numbers) of a row. One
instruction multiplies the chunks of four rows by the same chunk of one output's weights:

    left:   chunk of row 0   chunk of row 1   chunk of row 2   chunk of row 3
    right:  weights          weights          weights          weights

Lanes 4 r to 4 r + 3 therefore contain the partial sums of row r.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

from llvmlite import ir
from numba.core import cgutils, types

from paceline.cpu.emit import Emit, fetch, operation, pick, pointer
from paceline.cpu.memory import FLOAT_BYTES, HALF_BYTES
from paceline.cpu.settings import SUMS_PER_ROW
from paceline.util.machine import instruction_flags, on_x86

CHUNK = 16  # Bytes of a row that one instruction multiplies.
ROWS = 4  # Rows in a block, whose chunks fill a vector.
LINE = CHUNK * ROWS  # Bytes in a vector and in a cache line.
OUTPUTS = 8  # Outputs that are computed together.
MAX_BLOCKS = 3  # Blocks that are multiplied together; with eight outputs, they fill the registers.
PARTS = 4  # Number of parts into which the weights to prefetch are divided.
ALL_PARTS = (1 << PARTS) - 1  # Bit mask that selects all parts.
STRIDE = SUMS_PER_ROW * FLOAT_BYTES  # Bytes between the sums of consecutive rows.
_NEEDED = {"avx512f", "avx512bw", "avx512vl", "avx512_bf16"}


class BFloat16(ir.Type):  # type: ignore[misc]
    """The LLVM type `bfloat`, which llvmlite does not provide."""

    def _to_string(self) -> str:
        return "bfloat"


INDEX = ir.IntType(64)
_LANES = LINE // FLOAT_BYTES
_CHUNK, _FOUR = (
    ir.VectorType(kind, CHUNK // FLOAT_BYTES) for kind in (ir.IntType(32), ir.FloatType())
)
NUMBERS = ir.VectorType(BFloat16(), LINE // HALF_BYTES)
SUMS = ir.VectorType(ir.FloatType(), _LANES)


@cache
def available() -> bool:
    """Return whether this processor has the instructions that this module emits."""
    return on_x86() and set(instruction_flags()) >= _NEEDED


def where_available(emit: Emit, otherwise: Any = None) -> Emit:
    """Wrap an emitter so that it emits a trap if the processor lacks AVX512_BF16.

    A trap is an instruction that ends the process. Because of the trap, kernels that contain the
    wrapped code compile on any processor. Callers must check `available()` before they run such a
    kernel.

    Args:
        emit: Emitter. Its arguments are an LLVM builder, and then one LLVM value per argument.
        otherwise: LLVM constant that the wrapper returns instead of a result after it emits a
            trap. Default: None, for code without a result.
    """

    def guarded(builder: Any, *values: Any) -> Any:
        if available():
            return emit(builder, *values)
        builder.call(
            cgutils.get_or_insert_function(
                builder.module, ir.FunctionType(ir.VoidType(), []), "llvm.trap"
            ),
            [],
        )
        return otherwise

    return guarded


def multiply_blocks(
    counts: tuple[int, ...] = tuple(range(1, MAX_BLOCKS + 1)),
    outputs: int = OUTPUTS,
) -> Any:
    """Return an operation that multiplies blocks of rows by several outputs' weights.

    An operation is a function that compiled code can call. This operation ends the process if the
    processor lacks AVX512_BF16.

    Arguments of the operation (sizes and distances are in bytes):
        num_blocks: Number of blocks, one of `counts`.
        blocks: Address of the packed blocks.
        weight: Address of the outputs' weights, in contiguous rows.
        row_bytes: Size of a weight row, a multiple of 64.
        sums: Address at which to write the float32 results, with `STRIDE` bytes between rows.
        ahead: Distance from `weight` to the weights to prefetch.
        parts: Bit mask that selects which of the `PARTS` parts of these weights to prefetch.

    Args:
        counts: Numbers of blocks that the operation supports.
        outputs: Number of outputs, a multiple of four. The registers have room for 24 vectors of
            sums, one vector per output and block.
    """

    def emit(builder: Any, num_blocks: Any, *operands: Any) -> None:
        for count in counts:
            with builder.if_then(builder.icmp_signed("==", num_blocks, constant(count))):
                _multiply(builder, count, outputs, _DotOperands(*operands))

    return operation(types.void, (types.int64,) * 7, where_available(emit))


class _DotOperands(NamedTuple):
    """The arguments of a `multiply_blocks` operation, except `num_blocks`."""

    blocks: Any
    weight: Any
    row_bytes: Any
    sums: Any
    ahead: Any
    parts: Any


def _multiply(
    builder: Any,
    num_blocks: int,
    outputs: int,
    operands: _DotOperands,
) -> None:
    blocks, weight, row_bytes, out, ahead, parts = operands
    zeros = ir.Constant(SUMS, [0] * _LANES)
    sums = [
        [cgutils.alloca_once_value(builder, zeros) for _ in range(outputs)]
        for _ in range(num_blocks)
    ]
    fetched = builder.add(weight, ahead)
    wanted = [
        builder.trunc(builder.lshr(parts, constant(part)), ir.IntType(1)) for part in range(PARTS)
    ]
    num_lines = builder.udiv(row_bytes, constant(LINE))
    with cgutils.for_range(builder, num_lines, intp=INDEX) as loop:
        offset = builder.mul(loop.index, constant(LINE))
        lines = builder.add(fetched, times(builder, offset, outputs))
        for line in range(0, outputs, outputs // PARTS):
            with builder.if_then(wanted[line * PARTS // outputs]):
                for number in range(line, line + outputs // PARTS):
                    fetch(builder, plus(builder, lines, number * LINE), 2)
        for chunk in range(0, LINE, CHUNK):
            step = plus(builder, offset, chunk)
            vectors = [
                _load(builder, _at(builder, blocks, row_bytes, block, step, ROWS))
                for block in range(num_blocks)
            ]
            for output in range(outputs):
                numbers = repeat(builder, _at(builder, weight, row_bytes, output, step))
                for vector, block_sums in zip(vectors, sums, strict=True):
                    total = builder.load(block_sums[output])
                    total = add_products(builder, total, vector, numbers)
                    builder.store(total, block_sums[output])
    for block, block_sums in enumerate(sums):
        for first in range(0, outputs, _FOUR.count):
            target = plus(builder, out, block * ROWS * STRIDE + first * FLOAT_BYTES)
            totals = [builder.load(total) for total in block_sums[first : first + _FOUR.count]]
            _store_totals(builder, target, totals)


def constant(number: int) -> Any:
    """Return `number` as a 64-bit integer constant in LLVM."""
    return ir.Constant(INDEX, number)


def plus(builder: Any, address: Any, distance: int) -> Any:
    """Emit an instruction that adds a constant number of bytes to an address."""
    return builder.add(address, constant(distance))


def times(builder: Any, size: Any, number: int) -> Any:
    """Emit an instruction that multiplies a size by a constant number."""
    return builder.mul(size, constant(number))


def _at(builder: Any, base: Any, row_bytes: Any, index: int, offset: Any, rows: int = 1) -> Any:
    """Emit instructions that compute an address within a row or a block of rows.

        base + rows * (index * row_bytes + offset)

    This formula is the address of the chunks that begin at `offset` in each row of a block.

    Args:
        builder: LLVM builder.
        base: Address of the first row or block.
        row_bytes: Size of a row in bytes.
        index: Index of the row or block.
        offset: Offset within each row in bytes, a multiple of the chunk size.
        rows: Number of rows per block; 1 for a single row.
    """
    return builder.add(
        base, times(builder, builder.add(times(builder, row_bytes, index), offset), rows)
    )


def _load(builder: Any, address: Any) -> Any:
    return builder.load(pointer(builder, address, NUMBERS), align=1)


def repeat(builder: Any, address: Any) -> Any:
    """Emit instructions that load 16 bytes and repeat them four times in a vector."""
    chunk = builder.load(pointer(builder, address, _CHUNK), align=1)
    words = list(range(_CHUNK.count))
    return builder.bitcast(pick(builder, chunk, chunk, words * ROWS), NUMBERS)


def add_products(builder: Any, sums: Any, left: Any, right: Any) -> Any:
    """Emit VDPBF16PS, which multiplies two vectors and adds the products to `sums`."""
    function = ir.FunctionType(SUMS, [SUMS, NUMBERS, NUMBERS])
    instruction = "llvm.x86.avx512bf16.dpbf16ps.512"
    return builder.call(
        cgutils.get_or_insert_function(builder.module, function, instruction),
        (sums, left, right),
    )


def _store_totals(builder: Any, address: Any, outputs: list[Any]) -> None:
    """Emit instructions that store the totals of four outputs for each of four rows.

    The total of row r is the sum of lanes 4 r to 4 r + 3 of the output's vector:

        (lane 0 + lane 2) + (lane 1 + lane 3)

    Args:
        builder: LLVM builder.
        address: Address of the first row's totals, with `STRIDE` bytes between rows.
        outputs: Vector of sums for each of the four outputs.
    """
    first, second, third, fourth = outputs
    totals = fold_lanes(
        builder, fold_lanes(builder, first, second, 4), fold_lanes(builder, third, fourth, 4), 2
    )
    for row in range(ROWS):
        target = pointer(builder, plus(builder, address, row * STRIDE), _FOUR)
        lanes = list(range(row, _LANES, ROWS))
        builder.store(pick(builder, totals, totals, lanes), target, align=4)


def fold_lanes(builder: Any, first: Any, second: Any, size: int) -> Any:
    """Emit instructions that add the two halves of each group of lanes.

    A group is `size` consecutive lanes of a vector. Each group shrinks to half its size, so the
    groups of both vectors fit into one vector. For example, with a size of 4, the vectors a and b
    become this vector:

        a[0] + a[2], a[1] + a[3], a[4] + a[6], a[5] + a[7], ..., b[0] + b[2], b[1] + b[3], ...
    """
    low = [lane for lane in range(2 * _LANES) if lane % size < size // 2]
    halves = (
        pick(builder, first, second, low),
        pick(builder, first, second, [lane + size // 2 for lane in low]),
    )
    return builder.fadd(*halves)


def _copy(builder: Any, source: Any, target: Any) -> None:
    builder.store(
        builder.load(pointer(builder, source, _CHUNK), align=2),
        pointer(builder, target, _CHUNK),
        align=2,
    )


copy_chunk = operation(types.void, (types.int64,) * 2, _copy)  # source, target
