"""Scores of sixteen queries at a time, and the weights that become of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from paceline.cpu import amx, bf16_pack, simd_f32x8, softmax_weighted_sum
from paceline.cpu.attention.call import AttentionCall
from paceline.cpu.attention.tiled.workspace import (
    HALF,
    SIDE,
    STEP,
    QueryTile,
    Workspace,
    clear,
    copy,
    place_of,
)
from paceline.cpu.attention.tiles import FLOAT, LANES, cap
from paceline.util.compiled import inlined

_clear0, _clear1 = amx.zero(0), amx.zero(1)
_load2, _load3, _load5 = amx.load(2), amx.load(3), amx.load(5)
_store0, _store1 = amx.store(0), amx.store(1)
_score0, _score1 = amx.add_product(0, 2, 5), amx.add_product(1, 3, 5)


@inlined
def weigh_block(
    call: AttentionCall, part: QueryTile, room: Workspace, block: int, i: int, count: int
) -> int:
    """Scores and then weights of a block; returns its steps that are multiplied for all its
    queries at once.
    """
    size, totals = SIDE * call.value_dim * FLOAT, room.totals + block * amx.ROW
    clear(room.sums + block * size, size)
    for lane in range(count):
        # of a query that sees nothing
        simd_f32x8.store_float(totals + lane * FLOAT, np.float32(1.0))
    low, high, shared = _seen(call, part, i, count)
    if low >= high:
        return 0
    scores = room.scores + block * SIDE * room.width
    _lay_queries(call, part, room, i, count)
    for start in range(low, high, STEP):
        _score(call, part, room, scores + (start - low) * FLOAT, start, min(start + STEP, high))
    for lane in range(count):
        row = scores + lane * room.width
        softmax_weighted_sum.scale(
            row, row, (high - low + SIDE - 1) // SIDE, np.float32(call.scaling)
        )
        if call.softcap:
            cap(
                np.float32(call.softcap),
                row,
                row + (high - low + simd_f32x8.WIDTH - 1) // simd_f32x8.WIDTH * LANES,
            )
        column, member = divmod(part.first + i + lane, call.groups)
        steps = _arrange(part, row, column, low, shared)
        if steps:
            simd_f32x8.store_float(
                totals + lane * FLOAT, _weigh(call, row, steps, part.head * call.groups + member)
            )
    return shared // STEP


@inlined
def _seen(call: AttentionCall, part: QueryTile, i: int, count: int) -> tuple[int, int, int]:
    """Return the first key that any query of a block sees, the one behind the last, and how many
    first keys all of them see: 0 where these are not the part's first ones."""
    low, high, shared = call.keys, 0, call.keys
    for column in range(
        (part.first + i) // call.groups, (part.first + i + count - 1) // call.groups + 1
    ):
        begin, end = part.begin[column], part.begin[column + 1]
        if begin == end:
            shared = 0
            continue
        first = part.runs[begin]
        low, high = min(low, first.start), max(high, part.runs[end - 1].stop)
        shared = min(shared, first.stop - first.start) if first.start == part.base else 0
    return low, high, shared


@inlined
def _lay_queries(call: AttentionCall, part: QueryTile, room: Workspace, i: int, count: int) -> None:
    """Write the queries as words of two dims, a query a column; zeros in the place of those that
    fill up the sixteen.
    """
    size = call.dim * HALF
    for lane in range(count):
        column, member = divmod(part.first + i + lane, call.groups)
        source = (
            part.query
            + (part.head * call.groups + member) * call.query_head
            + column * call.query_column
        )
        copy(source, room.copied + lane * size, size)
    clear(room.copied + count * size, (SIDE - count) * size)
    for d in range(0, size, amx.ROW):
        amx.transpose(room.copied + d, size, room.queries + d * SIDE, amx.ROW)


@inlined
def _score(
    call: AttentionCall, part: QueryTile, room: Workspace, scores: int, start: int, stop: int
) -> None:
    """Products of all queries and up to 32 keys, zeros in the place of more."""
    size, source, stride = call.dim * HALF, part.key + start * call.key_place, call.key_place
    if stop > part.straight or stop - start < STEP:
        source, stride = room.keys, size
        for ordinal in range(start, stop):
            copy(
                part.key + place_of(part, ordinal) * call.key_place,
                room.keys + (ordinal - start) * size,
                size,
            )
        clear(room.keys + (stop - start) * size, (start + STEP - stop) * size)
    _clear0(), _clear1()
    for d in range(0, size, amx.ROW):
        _load5(room.queries + d * SIDE, amx.ROW)
        _load2(source + d, stride)
        _score0()
        _load3(source + SIDE * stride + d, stride)
        _score1()
    _store0(room.made, amx.ROW)
    _store1(room.made + amx.TILE, amx.ROW)
    amx.transpose(room.made, amx.ROW, scores, room.width)
    amx.transpose(room.made + amx.TILE, amx.ROW, scores + amx.ROW, room.width)


@inlined
def _arrange(part: QueryTile, row: int, column: int, low: int, shared: int) -> int:
    """Let the scores of a query lie by rank, and minus infinity behind them to the end of a
    step; returns its steps.
    """
    rank = 0
    for number in range(part.begin[column], part.begin[column + 1]):
        run = part.runs[number]
        rank = run.rank + run.stop - run.start
        for ordinal in range(run.start + max(0, shared - run.rank), run.stop):
            score = simd_f32x8.load_float(row + (ordinal - low) * FLOAT)
            simd_f32x8.store_float(row + (run.rank + ordinal - run.start) * FLOAT, score)
    steps = (rank + STEP - 1) // STEP
    for missing in range(rank, steps * STEP):
        simd_f32x8.store_float(row + missing * FLOAT, np.float32(-np.inf))
    return steps


@inlined
def _weigh(call: AttentionCall, row: int, steps: int, head: int) -> Any:
    """Turn the scores of a query into weights in their place; returns their total, float32."""
    largest = softmax_weighted_sum.find_largest(row, 2 * steps)
    sink = np.float32(-np.inf)
    if call.sinks:
        sink = simd_f32x8.load_float(call.sinks + head * FLOAT)
        largest = max(largest, sink)
    total = bf16_pack.weigh(row, steps, np.float32(largest))
    return np.float32(
        total + simd_f32x8.largest(simd_f32x8.exp(simd_f32x8.splat(np.float32(sink - largest))))
    )
