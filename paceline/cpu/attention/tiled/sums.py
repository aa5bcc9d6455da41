"""Compute the weighted sums of values with AMX, and write the output of attention.

A block consists of up to 16 queries. `add_steps` adds the weighted values of the keys that all
queries of a block see, for the whole block at once. `add_column_steps` then adds the values of the
other keys, for the queries of one token at a time.
"""

from __future__ import annotations

from paceline.cpu import amx, simd_f32x8
from paceline.cpu.attention.call import AttentionCall, output_index
from paceline.cpu.attention.tiled.workspace import (
    SIDE,
    STEP,
    STEP_BYTES,
    QueryTile,
    TileWorkspace,
    pair_up,
    value_of,
)
from paceline.cpu.memory import FLOAT_BYTES, HALF_BYTES, VECTOR_BYTES
from paceline.util.compiled import inlined

# The tiles for the sums and weights of a column have only one row per query head of the key head.
(
    *_SUMS,
    _WEIGHTS,
    _VALUES,
    COLUMN_SUMS,
    COLUMN_WEIGHTS,
) = range(amx.NUM_TILES)
_load_sums0, _load_sums1, _load_sums2, _load_sums3 = map(amx.load, _SUMS)
_store0, _store1, _store2, _store3 = map(amx.store, _SUMS)
_add0, _add1, _add2, _add3 = (amx.add_product(sums, _WEIGHTS, _VALUES) for sums in _SUMS)
_load_weights, _load_values = amx.load(_WEIGHTS), amx.load(_VALUES)
_load_column, _load_column_weights = amx.load(COLUMN_SUMS), amx.load(COLUMN_WEIGHTS)
_add_column = amx.add_product(COLUMN_SUMS, COLUMN_WEIGHTS, _VALUES)
_store_column = amx.store(COLUMN_SUMS)
_FOUR_ROWS = len(_SUMS) * amx.ROW


@inlined
def add_steps(call: AttentionCall, space: TileWorkspace, block: int, first: int, last: int) -> None:
    """Add the weighted values of the steps that all queries of a block see.

    Args:
        call: Arguments of the attention call.
        space: Working memory of the thread. Its buffer `values` must begin with the values of step
            `first`.
        block: Index of the block in the tile.
        first: Index of the first step. A step is 32 consecutive keys.
        last: Index of the last step, plus one.
    """
    size, count = call.value_dim * FLOAT_BYTES, last - first
    weights = space.scores + block * SIDE * space.width + first * STEP_BYTES
    sums = space.sums + block * SIDE * size
    in_fours = size // _FOUR_ROWS * _FOUR_ROWS
    for offset in range(0, in_fours, _FOUR_ROWS):
        _add_four(weights, space.width, space.values + offset, size, sums + offset, count)
    for offset in range(in_fours, size, amx.ROW):
        _add_single(weights, space.width, space.values + offset, size, sums + offset, count)


@inlined
def _add_four(weights: int, width: int, values: int, size: int, sums: int, count: int) -> None:
    """Add weighted values to a block's sums in 64 value dimensions, in four tiles.

    Args:
        weights: Address of the first query's softmax weights for the first step.
        width: Distance between the weights of consecutive queries, in bytes.
        values: Address of the first step's values, at the first of the 64 dimensions.
        size: Size of a row of values or sums, in bytes.
        sums: Address of the first query's sums, at the first of the 64 dimensions.
        count: Number of steps. A step is 32 consecutive keys.
    """
    _load_sums0(sums, size)
    _load_sums1(sums + amx.ROW, size)
    _load_sums2(sums + 2 * amx.ROW, size)
    _load_sums3(sums + 3 * amx.ROW, size)
    for step in range(count):
        for part in range(0, STEP_BYTES, amx.ROW):
            source = values + step * SIDE * size
            _load_weights(weights + step * STEP_BYTES + part, width)
            _load_values(source, size)
            _add0()
            _load_values(source + amx.ROW, size)
            _add1()
            _load_values(source + 2 * amx.ROW, size)
            _add2()
            _load_values(source + 3 * amx.ROW, size)
            _add3()
    _store0(sums, size)
    _store1(sums + amx.ROW, size)
    _store2(sums + 2 * amx.ROW, size)
    _store3(sums + 3 * amx.ROW, size)


@inlined
def _add_single(weights: int, width: int, values: int, size: int, sums: int, count: int) -> None:
    """Add weighted values to a block's sums in 16 value dimensions, in one tile.

    The arguments are the same as for `_add_four`, except that `values` and `sums` are the addresses
    at the first of the 16 dimensions.
    """
    _load_sums0(sums, size)
    for step in range(count):
        _load_values(values + step * SIDE * size, size)
        for part in range(0, STEP_BYTES, amx.ROW):
            _load_weights(weights + step * STEP_BYTES + part, width)
            _add0()
    _store0(sums, size)


@inlined
def add_column_steps(
    call: AttentionCall,
    tile: QueryTile,
    space: TileWorkspace,
    block: int,
    i: int,
    count: int,
    first: int,
) -> None:
    """Add the weighted values of the remaining steps, for one token at a time.

    These are the steps (32 consecutive keys each) that `add_steps` has not added, because not all
    queries of the block see them.

    Args:
        call: Arguments of the attention call.
        tile: Tile of queries.
        space: Working memory of the thread.
        block: Index of the block in the tile.
        i: Index of the block's first query in the tile.
        count: Number of queries in the block.
        first: Number of steps that `add_steps` has already added.
    """
    size = call.value_dim * FLOAT_BYTES
    lane = 0
    while lane < count:
        column = (tile.first + i + lane) // call.groups
        run, end = tile.begin[column], tile.begin[column + 1]
        keys = tile.runs[end - 1].rank + _length(tile, end - 1) if run < end else 0
        weights = space.scores + (block * SIDE + lane) * space.width
        sums = space.sums + (block * SIDE + lane) * size
        for step in range(first, (keys + STEP - 1) // STEP):
            run = _gather(call, tile, space, run, step * STEP, min((step + 1) * STEP, keys))
            for offset in range(0, size, amx.ROW):
                _load_column(sums + offset, size)
                _load_values(space.gathered + offset, size)
                for part in range(0, STEP_BYTES, amx.ROW):
                    _load_column_weights(weights + step * STEP_BYTES + part, space.width)
                    _add_column()
                _store_column(sums + offset, size)
        lane += min(call.groups, SIDE)


@inlined
def _length(tile: QueryTile, run: int) -> int:
    return int(tile.runs[run].stop - tile.runs[run].start)


@inlined
def _gather(
    call: AttentionCall, tile: QueryTile, space: TileWorkspace, run: int, rank: int, stop: int
) -> int:
    """Copy the values of up to 32 visible keys to a buffer, interleaved in pairs.

    The rank of a key is the key's index among the keys that the query sees. The function copies
    the values of the ranks `rank` to `stop` - 1. Two consecutive ranks form a pair. If a and b are
    the values of a pair, the buffer contains a0 b0 a1 b1 a2 b2 ... for this pair. Zeros replace
    missing values.

    Args:
        call: Arguments of the attention call.
        tile: Tile of queries.
        space: Working memory of the thread, with the buffer `gathered`.
        run: Index of the run that contains the first key, or of an earlier run. A run is a range of
            consecutive visible keys.
        rank: Rank of the first key.
        stop: Rank of the last key, plus one.
    Returns:
        Index of the run that contains the last key.
    """
    for pair in range(SIDE):
        first, second = space.zeros, space.zeros
        if rank < stop:
            while tile.runs[run].rank + _length(tile, run) <= rank:
                run += 1
            first = value_of(call, tile, tile.runs[run].start + rank - tile.runs[run].rank)
        if rank + 1 < stop:
            while tile.runs[run].rank + _length(tile, run) <= rank + 1:
                run += 1
            second = value_of(call, tile, tile.runs[run].start + rank + 1 - tile.runs[run].rank)
        pair_up(call, (first, second), space.gathered + pair * call.value_dim * FLOAT_BYTES)
        rank += 2
    return run


@inlined
def write_out(
    call: AttentionCall, tile: QueryTile, space: TileWorkspace, block: int, i: int, count: int
) -> None:
    """Divide a block's weighted sums by the total weights, and write the output.

    Args:
        call: Arguments of the attention call.
        tile: Tile of queries.
        space: Working memory of the thread.
        block: Index of the block in the tile.
        i: Index of the block's first query in the tile.
        count: Number of queries in the block.
    """
    size = call.value_dim * FLOAT_BYTES
    for lane in range(count):
        column, member = divmod(tile.first + i + lane, call.groups)
        index = output_index(call, tile.outputs + column, tile.head, member)
        total = simd_f32x8.load_float(space.totals + block * amx.ROW + lane * FLOAT_BYTES)
        sums = space.sums + (block * SIDE + lane) * size
        out = call.out + index * call.value_dim * HALF_BYTES
        for offset in range(0, size, VECTOR_BYTES):
            quotient = simd_f32x8.divide(simd_f32x8.load(sums + offset), simd_f32x8.splat(total))
            simd_f32x8.store_bfloat16(out + offset // FLOAT_BYTES * HALF_BYTES, quotient)
