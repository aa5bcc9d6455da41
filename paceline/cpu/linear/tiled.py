"""Multiply rows by a bfloat16 weight with AMX tiles.

With AMX, sixteen rows take little more time than one. The kernel computes the transposed product,
weight @ rows.T. It reads the weight in its original layout, 16 outputs by 32 inputs at a time, and
packs only the rows, of which there are few. AMX adds the products of 32 inputs at a time, in the
order that `amx` describes. The number of rows and outputs that are computed together does not
affect this order.
"""

from __future__ import annotations

import numpy as np

from paceline.cpu import amx, simd_f32x8
from paceline.cpu.linear.call import PRODUCT_CALL, TASK, ProductCall, read_call, take_task
from paceline.cpu.linear.unpack_call import UNPACK_CALL, describe, unpack_task
from paceline.cpu.memory import FLOAT_BYTES, HALF_BYTES, address, aligned, clear, copy
from paceline.cpu.row_blocks import even_share
from paceline.cpu.settings import (
    MAX_TALL_BLOCKS,
    PREFETCH_STREAMS,
    TILE_ROWS_AHEAD,
)
from paceline.cpu.thread_team import TeamJob
from paceline.util.compiled import inlined

INNER, OUTER = amx.ROW // HALF_BYTES, amx.SIDE  # The sizes of a weight are multiples of these.
_SQUARE = 2 * OUTER  # Outputs, and rows, in a square of four tiles of sums.
_MAX_TILES = amx.NUM_TILES // 2  # Maximum number of tiles of sums.
_STEP = INNER * HALF_BYTES  # Bytes of a row or of an output's weights in one tile.
_CONFIGURATION = np.frombuffer(amx.configuration(), dtype=np.float32)

_SUM0, _SUM1, _SUM2, _SUM3, _WEIGHT0, _WEIGHT1, _ROWS0, _ROWS1 = range(amx.NUM_TILES)
_SUMS = (_SUM0, _SUM1, _SUM2, _SUM3)
_clear0, _clear1, _clear2, _clear3 = map(amx.zero, _SUMS)
_store0, _store1, _store2, _store3 = map(amx.store, _SUMS)
_load_weight0, _load_weight1 = amx.load(_WEIGHT0), amx.load(_WEIGHT1)
_load_rows0, _load_rows1 = amx.load(_ROWS0), amx.load(_ROWS1)
# For squares: products of two tiles of weights and two tiles of rows.
_multiply00 = amx.add_product(_SUM0, _WEIGHT0, _ROWS0)
_multiply10 = amx.add_product(_SUM1, _WEIGHT1, _ROWS0)
_multiply01 = amx.add_product(_SUM2, _WEIGHT0, _ROWS1)
_multiply11 = amx.add_product(_SUM3, _WEIGHT1, _ROWS1)
# For columns: products of one tile of weights and the second, third and fourth tile of rows.
_multiply_second = amx.add_product(_SUM1, _WEIGHT0, _ROWS1)
_multiply_third = amx.add_product(_SUM2, _WEIGHT0, _ROWS0)
_multiply_fourth = amx.add_product(_SUM3, _WEIGHT0, _ROWS1)


def _multiply(call_address: int) -> int:
    """Run tasks of a `ProductCall`; return how many this thread ran."""
    call = read_call(call_address)
    count, inner, outer = call.count, call.inner, call.outer
    first = take_task(call_address)
    if first >= outer:
        return 0
    blocks = (count + amx.SIDE - 1) // amx.SIDE
    block_bytes = amx.SIDE * inner * HALF_BYTES
    memory = np.empty(
        (_MAX_TILES * amx.TILE + amx.ROW + (blocks + 1) * block_bytes) // FLOAT_BYTES,
        dtype=np.float32,
    )
    _pack(call.rows, aligned(memory) + _MAX_TILES * amx.TILE, count, inner, blocks)
    amx.configure(address(_CONFIGURATION))
    numbers = np.empty(
        (TASK * inner * HALF_BYTES + amx.ROW) // FLOAT_BYTES if call.unpack else amx.ROW,
        dtype=np.float32,
    )
    unpacking = np.empty(1, dtype=UNPACK_CALL)
    describe(call, unpacking[0])
    num_done = 0
    while first < outer:
        # Numba frees an array after its last use: read its address inside the loop.
        sums = aligned(memory)
        packed = sums + _MAX_TILES * amx.TILE
        last = min(first + TASK, outer)
        weight = call.weight
        if call.unpack:
            target = aligned(numbers)
            weight = unpack_task(
                call, unpacking[0], address(unpacking), first, last - first, target
            )
        if 2 < blocks <= MAX_TALL_BLOCKS:
            for output in range(first, last, OUTER):
                _multiply_tall(call, weight, packed, sums, blocks, output)
        else:
            for output in range(first, last, _SQUARE):
                _multiply_wide(call, weight, packed, sums, blocks, output)
        num_done += 1
        first = take_task(call_address)
    amx.release()
    return num_done


multiply_tiled = TeamJob(_multiply, PRODUCT_CALL)


@inlined
def _pack(rows: int, packed: int, count: int, inner: int, blocks: int) -> None:
    """Transpose blocks of 16 rows into tiles, in the order of their multiplication.

    A tile contains 32 inputs of 16 rows. Each 32-bit word contains two adjacent inputs of a row.
    If the last block of rows is incomplete, the function first copies the block to the memory after
    the packed blocks, and pads the copy with zeros.
    """
    row_bytes = inner * HALF_BYTES
    block_bytes = amx.SIDE * row_bytes
    spare = packed + blocks * block_bytes
    for block in range(blocks):
        source, target = rows + block * block_bytes, packed + block * block_bytes
        height = min(count - block * amx.SIDE, amx.SIDE)
        if height < amx.SIDE:
            copy(source, spare, height * row_bytes)
            clear(spare + height * row_bytes, (amx.SIDE - height) * row_bytes)
            source = spare
        for step in range(inner // INNER):
            amx.transpose(source + step * _STEP, row_bytes, target + step * amx.TILE, amx.ROW)


@inlined
def _multiply_tall(
    call: ProductCall, weight: int, rows: int, sums: int, blocks: int, output: int
) -> None:
    """Multiply all rows by the weights of 16 outputs, in groups of up to 64 rows.

    Each group prefetches a fraction of the next weights. If the first group prefetched all of them,
    this group would wait for memory, and memory would be idle during the other groups.

    Args:
        call: Arguments of the matrix product.
        weight: Address of the weights of output 0. If only the task's weights are in memory, this
            is the address at which the weights of output 0 would be.
        rows: Address of the packed rows.
        sums: Address of memory for four tiles of sums.
        blocks: Number of blocks of 16 rows.
        output: Index of the first output.
    """
    block_bytes = OUTER * call.inner * HALF_BYTES
    is_ahead = output + (TILE_ROWS_AHEAD + 1) * OUTER <= call.outer
    groups, done, fetched = even_share(blocks, _MAX_TILES), 0, 0 if is_ahead else PREFETCH_STREAMS
    for group in range(groups):
        left = groups - group
        size = even_share(blocks - done, left)
        last = fetched + even_share(PREFETCH_STREAMS - fetched, left)
        source, outputs = rows + done * block_bytes, weight + output * call.inner * HALF_BYTES
        _multiply_column(source, outputs, sums, call.inner, size, fetched, last)
        for block in range(size):
            _write_tile(call, sums + block * amx.TILE, (done + block) * amx.SIDE, output)
        done, fetched = done + size, last


@inlined
def _multiply_wide(
    call: ProductCall, weight: int, rows: int, sums: int, blocks: int, output: int
) -> None:
    """Multiply all rows by the weights of 32 outputs, 32 rows at a time.

    The arguments are the same as for `_multiply_tall`.
    """
    row_bytes = call.inner * HALF_BYTES
    outputs, width = weight + output * row_bytes, min(_SQUARE, call.outer - output)
    fetched = 0 if output + 2 * _SQUARE <= call.outer else PREFETCH_STREAMS
    for block in range(0, blocks, 2):
        source = rows + block * amx.SIDE * row_bytes
        last = fetched + even_share(PREFETCH_STREAMS - fetched, even_share(blocks - block, 2))
        if block + 1 < blocks:
            _multiply_square(source, outputs, sums, call.inner, width, fetched, last, True)
            _write_square(call, sums, block * amx.SIDE, output, width, _MAX_TILES)
        else:
            _multiply_square(source, outputs, sums, call.inner, width, fetched, last, False)
            _write_square(call, sums, block * amx.SIDE, output, width, _MAX_TILES // 2)
        fetched = last


@inlined
def _multiply_column(
    rows: int, weight: int, sums: int, inner: int, blocks: int, fetched: int, last: int
) -> None:
    """Multiply two to four blocks of 16 rows by the weights of 16 outputs.

    Args:
        rows: Address of the packed rows.
        weight: Address of the first output's weights.
        sums: Address at which to store the tiles of sums.
        inner: Number of inputs.
        blocks: Number of blocks.
        fetched: First region of the next weights to prefetch; see `_fetch`.
        last: Last region of the next weights to prefetch, plus one.
    """
    row_bytes = inner * HALF_BYTES
    block_bytes = OUTER * row_bytes
    # If there is no third block, the first one replaces it, and the sums are ignored.
    third = rows + (2 * block_bytes if blocks > 2 else 0)
    _clear0(), _clear1(), _clear2(), _clear3()
    for step in range(inner // INNER):
        ahead = weight + TILE_ROWS_AHEAD * block_bytes
        _fetch(ahead, block_bytes, step, amx.TILE, fetched, last)
        offset = step * amx.TILE
        _load_weight0(weight + step * _STEP, row_bytes)
        _load_rows0(rows + offset, amx.ROW)
        _multiply00()
        _load_rows1(rows + block_bytes + offset, amx.ROW)
        _multiply_second()
        _load_rows0(third + offset, amx.ROW)
        _multiply_third()
        if blocks == _MAX_TILES:
            _load_rows1(rows + 3 * block_bytes + offset, amx.ROW)
            _multiply_fourth()
    _store_sums(sums, True)


@inlined
def _multiply_square(
    rows: int,
    weight: int,
    sums: int,
    inner: int,
    width: int,
    fetched: int,
    last: int,
    has_second: bool,
) -> None:
    """Multiply 16 or 32 rows by the weights of 32 outputs, and store tiles of sums.

    `has_second` is True for 32 rows. `width` is the number of outputs: 32, or 16 if the weight has
    only 16 more outputs. The other arguments are the same as for `_multiply_column`.
    """
    row_bytes = inner * HALF_BYTES
    second = weight + (amx.SIDE * row_bytes if width > amx.SIDE else 0)
    _clear0(), _clear1()
    if has_second:
        _clear2(), _clear3()
    for step in range(inner // INNER):
        ahead = weight + _SQUARE * row_bytes
        _fetch(ahead, _SQUARE * row_bytes, step, 2 * amx.TILE, fetched, last)
        _load_weight0(weight + step * _STEP, row_bytes)
        _load_weight1(second + step * _STEP, row_bytes)
        _load_rows0(rows + step * amx.TILE, amx.ROW)
        _multiply00()
        _multiply10()
        if has_second:
            _load_rows1(rows + amx.SIDE * row_bytes + step * amx.TILE, amx.ROW)
            _multiply01()
            _multiply11()
    _store_sums(sums, has_second)


@inlined
def _store_sums(sums: int, has_second: bool) -> None:
    """Store two tiles of sums, or four if `has_second` is True, one after the other."""
    _store0(sums, amx.ROW)
    _store1(sums + amx.TILE, amx.ROW)
    if has_second:
        _store2(sums + 2 * amx.TILE, amx.ROW)
        _store3(sums + 3 * amx.TILE, amx.ROW)


@inlined
def _fetch(weight: int, size: int, step: int, step_bytes: int, first: int, last: int) -> None:
    """Prefetch a fraction of the next weights in one step of a product.

    The weights, of `size` bytes, are divided into `PREFETCH_STREAMS` regions of equal size. In each
    of the regions `first` to `last` - 1, a step prefetches step_bytes / `PREFETCH_STREAMS` bytes.
    Consecutive steps prefetch consecutive bytes.
    """
    share = step_bytes // PREFETCH_STREAMS
    for stream in range(first, last):
        source = weight + stream * size // PREFETCH_STREAMS + step * share
        for line in range(0, share, amx.ROW):
            simd_f32x8.prefetch_second(source + line)


@inlined
def _write_square(
    call: ProductCall, sums: int, row: int, output: int, width: int, tiles: int
) -> None:
    """Write two tiles of sums (16 rows) or four tiles (32 rows) to the output tensor.

    Tiles 0 and 1 contain the first 16 rows, tiles 2 and 3 the next 16. Even tiles contain the first
    16 outputs, and odd tiles the next 16.
    """
    for tile in range(tiles):
        if tile % 2 * amx.SIDE < width:
            tile_row, tile_output = row + tile // 2 * amx.SIDE, output + tile % 2 * amx.SIDE
            _write_tile(call, sums + tile * amx.TILE, tile_row, tile_output)


@inlined
def _write_tile(call: ProductCall, source: int, row: int, output: int) -> None:
    """Add the bias to a tile [16 outputs, 16 rows], and write it to the output tensor."""
    amx.transpose(source, amx.ROW, source, amx.ROW)
    for i in range(min(call.count - row, amx.SIDE)):
        target = call.out + ((row + i) * call.outer + output) * HALF_BYTES
        if call.bias:
            amx.round_sum(source + i * amx.ROW, target, call.bias + output * FLOAT_BYTES)
        else:
            amx.round_row(source + i * amx.ROW, target)
