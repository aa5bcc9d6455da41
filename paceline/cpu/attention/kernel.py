"""Attention by position, compiled: a query's output depends on itself and on the keys it sees, to
the last bit.

It does not depend on other queries, the place of a key in the cache, the cache's length, the
threads. All is in float32, and in this order:

- score of a query and a key: lane l of eight sums the products of the dims l, l + 8, ... in order,
  each by a fused multiply-add; then lanes l and l + 4 are added, l and l + 2, 0 and 1. The query
  was multiplied by the scaling before. In bfloat16, where the processor has instructions for it,
  see `dotted`.
- the largest score of all keys the query sees; every score's exponential of its difference to that.
- their sum: lane l sums those of the keys of rank l, l + 8, ... (rank 0 is the first key the query
  sees, by position); the lanes are added as above; an attention sink's exponential comes last.
- output of each dim: fused multiply-adds of exponential and value, key by key in order of position;
  then the division.

Blocks of keys and tiles of queries decide only when a number is computed, never with which others
it is added up.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from paceline.core.attention_metadata import RUN
from paceline.cpu import simd_f32x8, softmax_weighted_sum
from paceline.cpu.attention.call import BLOCK, CALL, TAKEN, AttentionCall, Tile, reaches
from paceline.cpu.attention.dotted import QUERIES, is_dotted, lay_queries, score_dotted
from paceline.cpu.attention.tiles import (
    BFLOAT16,
    FLOAT,
    FLOAT32,
    LANES,
    add_values,
    address,
    cap,
    load_row,
    multiply_one,
    multiply_two,
)
from paceline.cpu.thread_team import TeamJob
from paceline.util.compiled import as_pointer, inlined, take_number


def _attend(place: int) -> int:
    """Do tiles of the `AttentionCall` that lies at a place until none is left; returns how many
    this thread did.
    """
    call = numba.carray(as_pointer(place), 1, CALL)[0]
    runs = numba.carray(as_pointer(call.runs), call.run_count, RUN)
    starts = numba.carray(as_pointer(call.starts), call.rows + 1, np.int64)
    begin = numba.carray(as_pointer(call.begin), starts[call.rows] + 1, np.int64)
    cached = numba.carray(as_pointer(call.cached), call.rows, np.int64)
    tail = numba.carray(as_pointer(call.tail), (call.rows, call.tail_places), np.int64)
    tiles = (call.columns * call.groups + call.tile - 1) // call.tile
    queries = np.empty((call.tile + 1, call.dim), dtype=np.float32)
    scores = np.empty((call.tile, call.keys + BLOCK), dtype=np.float32)
    sums = np.empty((call.tile, call.value_dim), dtype=np.float32)
    totals = np.empty(call.tile, dtype=np.float32)
    cursors = np.empty(call.tile, dtype=np.int64)
    block = np.empty(BLOCK * max(call.dim, call.value_dim), dtype=np.float32)
    products = np.empty((QUERIES, BLOCK), dtype=np.float32)
    places = np.empty(softmax_weighted_sum.QUERIES, dtype=np.int64)
    done = 0
    while True:
        task = take_number(place + TAKEN)
        if task >= call.rows * call.key_heads * tiles:
            return done
        row, head, first = (
            task // tiles // call.key_heads,
            task // tiles % call.key_heads,
            task % tiles * call.tile,
        )
        done += 1
        length = min(call.tile, (starts[row + 1] - starts[row]) * call.groups - first)
        if length <= 0:  # other rows have more columns
            continue
        origin = call.query + (
            starts[row] * call.query_column if call.packed else row * call.query_row
        )
        seen = begin[starts[row] : starts[row + 1] + 1]
        scratch = queries, scores, sums, totals, cursors, block, products, places
        _attend_tile(
            call,
            Tile(
                row,
                head,
                first,
                length,
                origin,
                starts[row],
                runs,
                seen,
                cached[row],
                tail[row],
                *scratch,
            ),
        )


attend = TeamJob(_attend, CALL)


@inlined
def _attend_tile(call: AttentionCall, tile: Tile) -> None:
    low, high = _span(call, tile)
    keys = call.key + tile.row * call.key_row + tile.head * call.key_head
    if is_dotted(call):
        lay_queries(call, tile)
        for start in range(low, high, BLOCK):
            score_dotted(call, tile, keys, start, min(start + BLOCK, high))
    else:
        _load_queries(call, tile)
        for start in range(low, high, BLOCK):
            _score(call, tile, keys, start, min(start + BLOCK, high))
    for i in range(tile.length):
        tile.totals[i] = _softmax(call, tile, i)
    tile.sums[: tile.length] = 0.0
    values = call.value + tile.row * call.value_row + tile.head * call.value_head
    for start in range(low, high, BLOCK):
        _weigh(call, tile, values, start, min(start + BLOCK, high))
    _write_out(call, tile)


@inlined
def _load_queries(call: AttentionCall, tile: Tile) -> None:
    scaling = simd_f32x8.splat(np.float32(call.scaling))
    for i in range(tile.length):
        column, member = divmod(tile.first + i, call.groups)
        head = tile.head * call.groups + member
        source = tile.origin + head * call.query_head + column * call.query_column
        target = address(tile.queries) + i * call.dim * FLOAT
        load_row(call.kind, source, target, call.dim)
        for place in range(target, target + call.dim * FLOAT, LANES):
            simd_f32x8.store(place, simd_f32x8.multiply(simd_f32x8.load(place), scaling))


@inlined
def _span(call: AttentionCall, tile: Tile) -> tuple[int, int]:
    """First key that any query of the tile sees, and the one behind the last."""
    low, high = call.keys, 0
    for column in range(
        tile.first // call.groups, (tile.first + tile.length - 1) // call.groups + 1
    ):
        begin, end = tile.begin[column], tile.begin[column + 1]
        if begin < end:
            low, high = min(low, tile.runs[begin].start), max(high, tile.runs[end - 1].stop)
    return low, high


@inlined
def _stage(
    call: AttentionCall,
    tile: Tile,
    source: int,
    stride: int,
    dim: int,
    start: int,
    stop: int,
    fours: bool,
) -> tuple[int, int]:
    """Return an address and a stride at which the keys (or values) start .. stop - 1 lie as
    float32.

    Args:
        fours: the number of keys must be a multiple of four: others, of zeros, are appended.
    """
    place = start if start < tile.cached else tile.tail[start - tile.cached]
    adjacent = call.kind == FLOAT32 and not (fours and (stop - start) % 4)
    for ordinal in range(max(start, tile.cached), stop):
        adjacent = adjacent and tile.tail[ordinal - tile.cached] == place + ordinal - start
    if adjacent:
        return source + place * stride, stride
    target = address(tile.block)
    for ordinal in range(start, stop):
        place = ordinal if ordinal < tile.cached else tile.tail[ordinal - tile.cached]
        load_row(call.kind, source + place * stride, target + (ordinal - start) * dim * FLOAT, dim)
    if fours:
        tile.block[(stop - start) * dim : (stop - start + 3) // 4 * 4 * dim] = 0.0
    return target, dim * FLOAT


@inlined
def _score(call: AttentionCall, tile: Tile, source: int, start: int, stop: int) -> None:
    """Scores of a block of keys, of the pairs of queries of which one may see some of them."""
    keys, stride = _stage(call, tile, source, call.key_place, call.dim, start, stop, True)
    size, row = call.dim * FLOAT, tile.scores.shape[1] * FLOAT
    for i in range(0, tile.length, 2):
        last = min(i + 1, tile.length - 1)
        if not (reaches(call, tile, i, start, stop) or reaches(call, tile, last, start, stop)):
            continue
        query = address(tile.queries) + i * size
        target = address(tile.scores) + i * row + start * FLOAT
        for four in range((stop - start + 3) // 4):
            if i < last:
                multiply_two(
                    query, size, keys + 4 * four * stride, stride, target + 4 * four * FLOAT, row
                )
            else:
                multiply_one(
                    query, size, keys + 4 * four * stride, stride, target + 4 * four * FLOAT
                )


@inlined
def _softmax(call: AttentionCall, tile: Tile, i: int) -> Any:
    """Turn the scores that query i sees into exponentials, side by side from its first key's
    place on; their sum, float32.
    """
    column, member = divmod(tile.first + i, call.groups)
    begin, end = tile.begin[column], tile.begin[column + 1]
    tile.cursors[i] = begin
    if begin == end:
        return np.float32(1.0)
    runs, row = tile.runs, tile.scores[i]
    start = runs[begin].start
    for run in range(begin + 1, end):
        shift = start + runs[run].rank - runs[run].start
        for ordinal in range(runs[run].start, runs[run].stop):
            row[ordinal + shift] = row[ordinal]
    count = runs[end - 1].rank + runs[end - 1].stop - runs[end - 1].start
    first = address(row) + start * FLOAT
    last = first + count * FLOAT
    if call.softcap:
        cap(np.float32(call.softcap), first, last)
    vectors = (count + 2 * simd_f32x8.WIDTH - 1) // (2 * simd_f32x8.WIDTH)
    row[start + count : start + vectors * 2 * simd_f32x8.WIDTH] = -np.inf
    largest = softmax_weighted_sum.find_largest(first, vectors)
    sink = np.float32(-np.inf)
    if call.sinks:
        sink = simd_f32x8.load_float(call.sinks + (tile.head * call.groups + member) * FLOAT)
        largest = max(largest, sink)
    total = softmax_weighted_sum.weigh(first, vectors, np.float32(largest))
    return np.float32(
        total + simd_f32x8.largest(simd_f32x8.exp(simd_f32x8.splat(np.float32(sink - largest))))
    )


@inlined
def _weigh(call: AttentionCall, tile: Tile, source: int, start: int, stop: int) -> None:
    """Add the values of a block of keys, each times its weight, to the sums of the queries that
    see it.
    """
    halves = call.kind == BFLOAT16 and stop <= tile.cached and call.value_dim % 16 == 0
    if halves:
        values, stride = source + start * call.value_place, call.value_place
    else:
        values, stride = _stage(
            call, tile, source, call.value_place, call.value_dim, start, stop, False
        )
    row, size = tile.scores.shape[1] * FLOAT, call.value_dim * FLOAT
    i = 0
    while i < tile.length:
        count = _all_see(
            call, tile, i, min(softmax_weighted_sum.QUERIES, tile.length - i), start, stop
        )
        if count:
            for other in range(count):
                tile.places[other] = (
                    address(tile.scores)
                    + (i + other) * row
                    + _weight_place(call, tile, i + other, start)
                )
            add_values(
                address(tile.places),
                values,
                stride,
                stop - start,
                address(tile.sums) + i * size,
                size,
                count,
                halves,
            )
            i += count
            continue
        end = tile.begin[(tile.first + i) // call.groups + 1]
        while tile.cursors[i] < end and tile.runs[tile.cursors[i]].start < stop:
            run = tile.runs[tile.cursors[i]]
            low, high = max(start, run.start), min(stop, run.stop)
            if low < high:
                tile.places[0] = address(tile.scores) + i * row + _weight_place(call, tile, i, low)
                target = address(tile.sums) + i * size
                add_values(
                    address(tile.places),
                    values + (low - start) * stride,
                    stride,
                    high - low,
                    target,
                    size,
                    1,
                    halves,
                )
            if run.stop > stop:
                break
            tile.cursors[i] += 1
        i += 1


@inlined
def _all_see(call: AttentionCall, tile: Tile, first: int, count: int, start: int, stop: int) -> int:
    """Return `count` if so many queries see all of a block, else 0; moves their cursors to the
    run that reaches into it.
    """
    runs, cursors = tile.runs, tile.cursors
    all_see = True
    for i in range(first, first + count):
        end = tile.begin[(tile.first + i) // call.groups + 1]
        while cursors[i] < end and runs[cursors[i]].stop <= start:
            cursors[i] += 1
        all_see = (
            all_see
            and cursors[i] < end
            and runs[cursors[i]].start <= start
            and runs[cursors[i]].stop >= stop
        )
    return count if all_see else 0


@inlined
def _weight_place(call: AttentionCall, tile: Tile, i: int, ordinal: int) -> int:
    """Bytes from the beginning of the scores of query i to the weight of a key of the run at its
    cursor.
    """
    first, run = tile.runs[tile.begin[(tile.first + i) // call.groups]], tile.runs[tile.cursors[i]]
    return (first.start + run.rank + ordinal - run.start) * FLOAT


@inlined
def _write_out(call: AttentionCall, tile: Tile) -> None:
    """Divide the sums by the totals of the weights."""
    size = call.value_dim * FLOAT
    for i in range(tile.length):
        column, member = divmod(tile.first + i, call.groups)
        place = (
            (tile.outputs + column) * call.key_heads * call.groups
            + tile.head * call.groups
            + member
        )
        total = simd_f32x8.splat(tile.totals[i])
        for d in range(0, size, LANES):
            quotient = simd_f32x8.divide(simd_f32x8.load(address(tile.sums) + i * size + d), total)
            if call.kind == BFLOAT16:
                simd_f32x8.store_bfloat16(call.out + (place * size + d) // 2, quotient)
            else:
                simd_f32x8.store(call.out + place * size + d, quotient)
