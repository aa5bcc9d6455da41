"""Compute the weighted sums of values that attention returns.

Queries are processed in blocks of up to 16. The module first adds the weighted values of keys that
all queries of a block see, for all queries of the block at once. The values of the other keys
follow, for the queries of one token at a time.
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

# Sums and weights of a column have a tile of their height: one row per query head of the key head.
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
    """Add the weighted values of steps `first` to `last` - 1 to a block's sums.

    A step is 32 consecutive keys, and a block is up to 16 queries. The buffer `space.values` must
    begin with the values of step `first`.
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
    """Add the weighted values of 32 * `count` keys to the sums of 64 value dimensions."""
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
    """Add the weighted values of 32 * `count` keys to the sums of 16 value dimensions."""
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
    """Add the weighted values that `add_steps` left out, for one token at a time.

    A block is up to 16 queries, and a step is 32 consecutive keys. `add_steps` adds only the steps
    that all queries of a block see.

    Args:
        call: Arguments of the attention call.
        tile: Current tile of queries.
        space: Memory of the thread.
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
    """Copy the values of keys `rank` to `stop` - 1, interleaving them in pairs.

    The rank of a key is the key's index among the keys that the query sees. A run is a range of
    consecutive visible keys. In a pair, numbers of the first and the second key alternate.

    Args:
        call: Arguments of the attention call.
        tile: Current tile of queries.
        space: Memory of the thread.
        run: Index of the run with the first key, or of an earlier run.
        rank: Rank of the first key.
        stop: Rank of the last key, plus one.

    Returns:
        Index of the run with the last key.
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
    """Write the output of a block of queries as bfloat16.

    The output is the weighted sum of each query, divided by its total weight.
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
