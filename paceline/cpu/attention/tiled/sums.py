"""Sums of values by the weights of a block of queries: steps that all of them see, then those of
each column.
"""

from __future__ import annotations

from paceline.cpu import amx, simd_f32x8
from paceline.cpu.attention.call import AttentionCall
from paceline.cpu.attention.tiled.workspace import (
    BYTES,
    SIDE,
    STEP,
    QueryTile,
    Workspace,
    pair_up,
    value_of,
)
from paceline.cpu.attention.tiles import FLOAT, LANES
from paceline.util.compiled import inlined

_load0, _load1, _load2, _load3, _load4, _load5, _load6, _load7 = (
    amx.load(tile) for tile in range(8)
)
_store0, _store1, _store2, _store3, _store6 = (amx.store(tile) for tile in (0, 1, 2, 3, 6))
_add0, _add1, _add2, _add3 = (amx.add_product(tile, 4, 5) for tile in range(4))
_add_own = amx.add_product(6, 7, 5)


@inlined
def add_steps(call: AttentionCall, room: Workspace, block: int, first: int, last: int) -> None:
    """Add the values of some steps of the section that is laid out to the sums of a block;
    `first` is the section's first.
    """
    weights = room.scores + block * SIDE * room.width + first * BYTES
    sums, size = room.sums + block * SIDE * call.value_dim * FLOAT, call.value_dim * FLOAT
    whole = size // (4 * amx.ROW) * 4 * amx.ROW
    for d in range(0, whole, 4 * amx.ROW):
        _add_four(weights, room.width, room.values + d, size, sums + d, last - first)
    for d in range(whole, size, amx.ROW):
        _add_one(weights, room.width, room.values + d, size, sums + d, last - first)


@inlined
def _add_four(weights: int, width: int, values: int, size: int, sums: int, count: int) -> None:
    """Add the products of `count` steps to 64 dims of the sums of all queries."""
    _load0(sums, size)
    _load1(sums + amx.ROW, size)
    _load2(sums + 2 * amx.ROW, size)
    _load3(sums + 3 * amx.ROW, size)
    for step in range(count):
        for part in range(0, BYTES, amx.ROW):
            source = values + step * SIDE * size
            _load4(weights + step * BYTES + part, width)
            _load5(source, size)
            _add0()
            _load5(source + amx.ROW, size)
            _add1()
            _load5(source + 2 * amx.ROW, size)
            _add2()
            _load5(source + 3 * amx.ROW, size)
            _add3()
    _store0(sums, size)
    _store1(sums + amx.ROW, size)
    _store2(sums + 2 * amx.ROW, size)
    _store3(sums + 3 * amx.ROW, size)


@inlined
def _add_one(weights: int, width: int, values: int, size: int, sums: int, count: int) -> None:
    """The same for 16 dims."""
    _load0(sums, size)
    for step in range(count):
        _load5(values + step * SIDE * size, size)
        for part in range(0, BYTES, amx.ROW):
            _load4(weights + step * BYTES + part, width)
            _add0()
    _store0(sums, size)


@inlined
def add_own_steps(
    call: AttentionCall,
    part: QueryTile,
    room: Workspace,
    block: int,
    i: int,
    count: int,
    first: int,
) -> None:
    """Add what is left for each column from step `first` on: its own keys, by rank."""
    size = call.value_dim * FLOAT
    lane = 0
    while lane < count:
        column = (part.first + i + lane) // call.groups
        begin, end = part.begin[column], part.begin[column + 1]
        keys = (
            part.runs[end - 1].rank + part.runs[end - 1].stop - part.runs[end - 1].start
            if begin < end
            else 0
        )
        weights = room.scores + (block * SIDE + lane) * room.width
        sums = room.sums + (block * SIDE + lane) * size
        for step in range(first, (keys + STEP - 1) // STEP):
            begin = _gather(call, part, room, begin, step * STEP, min((step + 1) * STEP, keys))
            for d in range(0, size, amx.ROW):
                _load6(sums + d, size)
                _load5(room.gathered + d, size)
                for half in range(0, BYTES, amx.ROW):
                    _load7(weights + step * BYTES + half, room.width)
                    _add_own()
                _store6(sums + d, size)
        lane += min(call.groups, SIDE)


@inlined
def _gather(
    call: AttentionCall, part: QueryTile, room: Workspace, run: int, rank: int, stop: int
) -> int:
    """Lay the values of the keys of ranks rank .. stop - 1 out as words of two; returns the run
    that the last one lies in.

    Args:
        run: that the first one lies in, or one before it.
    """
    for pair in range(SIDE):
        first, second = room.zeros, room.zeros
        if rank < stop:
            while part.runs[run].rank + part.runs[run].stop - part.runs[run].start <= rank:
                run += 1
            first = value_of(call, part, part.runs[run].start + rank - part.runs[run].rank)
        if rank + 1 < stop:
            while part.runs[run].rank + part.runs[run].stop - part.runs[run].start <= rank + 1:
                run += 1
            second = value_of(call, part, part.runs[run].start + rank + 1 - part.runs[run].rank)
        pair_up(call, (first, second), room.gathered + pair * call.value_dim * FLOAT)
        rank += 2
    return run


@inlined
def write_out(
    call: AttentionCall, part: QueryTile, room: Workspace, block: int, i: int, count: int
) -> None:
    """Divide the sums by the totals of the weights."""
    size = call.value_dim * FLOAT
    for lane in range(count):
        column, member = divmod(part.first + i + lane, call.groups)
        place = (
            (part.outputs + column) * call.key_heads * call.groups
            + part.head * call.groups
            + member
        )
        total = simd_f32x8.load_float(room.totals + block * amx.ROW + lane * FLOAT)
        sums = room.sums + (block * SIDE + lane) * size
        for d in range(0, size, LANES):
            simd_f32x8.store_bfloat16(
                call.out + (place * size + d) // 2,
                simd_f32x8.divide(simd_f32x8.load(sums + d), simd_f32x8.splat(total)),
            )
