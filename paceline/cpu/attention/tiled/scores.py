"""Compute scores and softmax weights for sixteen attention queries at a time."""

from __future__ import annotations

from typing import Any

import numpy as np

from paceline.cpu import amx, bf16_pack, simd_f32x8, softmax_weighted_sum
from paceline.cpu.attention.call import AttentionCall
from paceline.cpu.attention.loops import add_sink, cap, load_sink
from paceline.cpu.attention.tiled.workspace import (
    SIDE,
    STEP,
    QueryTile,
    TileWorkspace,
    cache_position,
)
from paceline.cpu.memory import FLOAT_BYTES, HALF_BYTES, VECTOR_BYTES, clear, copy
from paceline.util.compiled import inlined

# These AMX tiles have all sixteen rows, unlike the tiles for the sums of a column in `sums`.
_PRODUCT0, _PRODUCT1, _KEYS0, _KEYS1, _QUERIES = range(5)
_clear0, _clear1 = amx.zero(_PRODUCT0), amx.zero(_PRODUCT1)
_load_keys0, _load_keys1, _load_queries = map(amx.load, (_KEYS0, _KEYS1, _QUERIES))
_store0, _store1 = amx.store(_PRODUCT0), amx.store(_PRODUCT1)
_score0 = amx.add_product(_PRODUCT0, _KEYS0, _QUERIES)
_score1 = amx.add_product(_PRODUCT1, _KEYS1, _QUERIES)


@inlined
def weigh_block(
    call: AttentionCall, tile: QueryTile, space: TileWorkspace, block: int, i: int, count: int
) -> int:
    """Compute the softmax weights of a block of up to sixteen queries.

    Args:
        call: Arguments of the attention call.
        tile: Tile of queries.
        space: Working memory of the thread.
        block: Index of the block in the tile.
        i: Index of the block's first query in the tile.
        count: Number of queries in the block.

    Returns:
        Number of leading steps (32 keys each) in which all queries of the block see the same keys.
    """
    size, totals = SIDE * call.value_dim * FLOAT_BYTES, space.totals + block * amx.ROW
    clear(space.sums + block * size, size)
    for lane in range(count):  # the total of a query that sees no key remains 1
        simd_f32x8.store_float(totals + lane * FLOAT_BYTES, np.float32(1.0))
    low, high, shared = _seen(call, tile, i, count)
    if low >= high:
        return 0
    scores = space.scores + block * SIDE * space.width
    _lay_queries(call, tile, space, i, count)
    for start in range(low, high, STEP):
        target = scores + (start - low) * FLOAT_BYTES
        _score(call, tile, space, target, start, min(start + STEP, high))
    vectors = (high - low + SIDE - 1) // SIDE
    capped = (high - low + simd_f32x8.WIDTH - 1) // simd_f32x8.WIDTH * VECTOR_BYTES
    for lane in range(count):
        row = scores + lane * space.width
        softmax_weighted_sum.scale(row, row, vectors, np.float32(call.scaling))
        column, member = divmod(tile.first + i + lane, call.groups)
        if call.bias:
            _add_bias(call, tile, row - low * FLOAT_BYTES, column, member)
        if call.softcap:
            cap(np.float32(call.softcap), row, row + capped)
        steps = _arrange(tile, row, column, low, shared)
        if steps:
            total = _weigh(call, row, steps, tile.head * call.groups + member)
            simd_f32x8.store_float(totals + lane * FLOAT_BYTES, total)
    return shared // STEP


@inlined
def _seen(call: AttentionCall, tile: QueryTile, i: int, count: int) -> tuple[int, int, int]:
    """Return the range of keys that the queries of a block see.

    Let the leading keys be those that all queries see, from the key `tile.base` onwards. There are
    none if the first visible key of any query is another one.

    Args:
        call: Arguments of the attention call.
        tile: Tile of queries.
        i: Index of the block's first query in the tile.
        count: Number of queries in the block.
    Returns:
        The index of the first key that any query sees, the index of the last such key plus one, and
        the number of leading keys.
    """
    low, high, shared = call.keys, 0, call.keys
    for column in range(
        (tile.first + i) // call.groups, (tile.first + i + count - 1) // call.groups + 1
    ):
        begin, end = tile.begin[column], tile.begin[column + 1]
        if begin == end:
            shared = 0
            continue
        first = tile.runs[begin]
        low, high = min(low, first.start), max(high, tile.runs[end - 1].stop)
        shared = min(shared, first.stop - first.start) if first.start == tile.base else 0
    return low, high, shared


@inlined
def _lay_queries(
    call: AttentionCall, tile: QueryTile, space: TileWorkspace, i: int, count: int
) -> None:
    """Transpose a block's queries, because AMX multiplies keys by queries as columns.

    A 32-bit word contains two adjacent elements of a query. The function writes words [dim / 2, 16]
    to `space.queries`. Column j contains the words of query j of the block. If the block has fewer
    than sixteen queries, the other columns are zeros.
    """
    size = call.dim * HALF_BYTES
    for lane in range(count):
        column, member = divmod(tile.first + i + lane, call.groups)
        head = tile.head * call.groups + member
        source = tile.query + head * call.query_head + column * call.query_column
        copy(source, space.copied + lane * size, size)
    clear(space.copied + count * size, (SIDE - count) * size)
    for offset in range(0, size, amx.ROW):
        amx.transpose(space.copied + offset, size, space.queries + offset * SIDE, amx.ROW)


@inlined
def _score(
    call: AttentionCall, tile: QueryTile, space: TileWorkspace, scores: int, start: int, stop: int
) -> None:
    """Compute the unscaled scores of up to 32 keys for all queries of a block.

    Args:
        call: Arguments of the attention call.
        tile: Tile of queries.
        space: Working memory of the thread.
        scores: Address at which to write the scores of the first query.
        start: Index of the first key, in text order.
        stop: Index of the last key, plus one. If there are fewer than 32 keys, zeros replace the
            missing ones.
    """
    size, source, stride = (
        call.dim * HALF_BYTES,
        tile.key + start * call.key_stride,
        call.key_stride,
    )
    if stop > tile.straight or stop - start < STEP:
        source, stride = space.keys, size
        for ordinal in range(start, stop):
            key = tile.key + cache_position(tile, ordinal) * call.key_stride
            copy(key, space.keys + (ordinal - start) * size, size)
        clear(space.keys + (stop - start) * size, (start + STEP - stop) * size)
    _clear0(), _clear1()
    for offset in range(0, size, amx.ROW):
        _load_queries(space.queries + offset * SIDE, amx.ROW)
        _load_keys0(source + offset, stride)
        _score0()
        _load_keys1(source + SIDE * stride + offset, stride)
        _score1()
    _store0(space.products, amx.ROW)
    _store1(space.products + amx.TILE, amx.ROW)
    amx.transpose(space.products, amx.ROW, scores, space.width)
    amx.transpose(space.products + amx.TILE, amx.ROW, scores + amx.ROW, space.width)


@inlined
def _add_bias(call: AttentionCall, tile: QueryTile, row: int, column: int, member: int) -> None:
    """Add the biases of a query to the scores of the keys that it sees.

    Args:
        call: Arguments of the attention call.
        tile: Tile of queries.
        row: Base address of the query's float32 scores. The score of key i, in text order, is at
            the address `row` + 4 * i.
        column: Index of the query's column in the row.
        member: Index of the query head among the heads that share a key head.
    """
    head = tile.head * call.groups + member
    biases = tile.biases + head * call.bias_head + column * call.bias_column
    for number in range(tile.begin[column], tile.begin[column + 1]):
        for ordinal in range(tile.runs[number].start, tile.runs[number].stop):
            score = row + ordinal * FLOAT_BYTES
            bias = simd_f32x8.load_float(biases + cache_position(tile, ordinal) * FLOAT_BYTES)
            simd_f32x8.store_float(score, np.float32(simd_f32x8.load_float(score) + bias))


@inlined
def _arrange(tile: QueryTile, row: int, column: int, low: int, shared: int) -> int:
    """Move a query's scores of visible keys to the front of its row, ordered by rank.

    A key is hidden if the query does not see it. The rank of any other key is its index among the
    keys that the query sees. At first, the row of scores contains all keys in text order, from the
    key `low`. The function moves the score of the key with rank r to position r of the row. It then
    pads the row with -inf to a multiple of 32 scores.

    Args:
        tile: Tile of queries.
        row: Address of the query's scores.
        column: Index of the query's column in the row.
        low: Index of the key whose score is first in the row.
        shared: Number of leading keys that all queries of the block see. The scores of these keys
            do not move.
    Returns:
        Number of steps (32 scores each) in the row.
    """
    rank = 0
    for number in range(tile.begin[column], tile.begin[column + 1]):
        run = tile.runs[number]
        rank = run.rank + run.stop - run.start
        for ordinal in range(run.start + max(0, shared - run.rank), run.stop):
            score = simd_f32x8.load_float(row + (ordinal - low) * FLOAT_BYTES)
            target = row + (run.rank + ordinal - run.start) * FLOAT_BYTES
            simd_f32x8.store_float(target, score)
    steps = (rank + STEP - 1) // STEP
    for missing in range(rank, steps * STEP):
        simd_f32x8.store_float(row + missing * FLOAT_BYTES, np.float32(-np.inf))
    return steps


@inlined
def _weigh(call: AttentionCall, row: int, steps: int, head: int) -> Any:
    """Convert a query's scores to softmax weights, and return their float32 total.

    Args:
        call: Arguments of the attention call.
        row: Address of the query's scores.
        steps: Number of steps (32 scores each).
        head: Index of the query head, whose attention sink is included in the total.
    """
    largest = softmax_weighted_sum.find_largest(row, 2 * steps)
    sink = load_sink(call, head)
    if call.sinks:
        largest = max(largest, sink)
    total = bf16_pack.weigh(row, steps, np.float32(largest))
    return add_sink(total, sink, largest)
