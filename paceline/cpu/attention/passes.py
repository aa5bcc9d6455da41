"""Compute scores, softmax weights and weighted sums for a tile of queries."""

from __future__ import annotations

from typing import Any

import numpy as np

from paceline.cpu import simd_f32x8, softmax_weighted_sum
from paceline.cpu.attention.call import AttentionCall, Tile, cache_position, reaches
from paceline.cpu.attention.loops import add_sink, add_values, cap, load_sink
from paceline.cpu.fma_dot import OUTPUTS, multiply_rows
from paceline.cpu.memory import BFLOAT16, FLOAT32, FLOAT_BYTES, VECTOR_BYTES, address, load_row
from paceline.util.compiled import inlined

_PAIR = 2  # number of queries whose scores are computed together
_LANES = softmax_weighted_sum.STEP // FLOAT_BYTES
_multiply = multiply_rows(FLOAT32, _PAIR)


@inlined
def load_queries(call: AttentionCall, tile: Tile) -> None:
    """Convert a tile's queries to float32, and multiply them by the scaling factor."""
    scaling, row_bytes = simd_f32x8.splat(np.float32(call.scaling)), call.dim * FLOAT_BYTES
    for i in range(tile.length):
        column, member = divmod(tile.first + i, call.groups)
        head = tile.head * call.groups + member
        source = tile.origin + head * call.query_head + column * call.query_column
        target = address(tile.queries) + i * row_bytes
        load_row(call.kind, source, target, call.dim)
        for vector in range(target, target + row_bytes, VECTOR_BYTES):
            simd_f32x8.store(vector, simd_f32x8.multiply(simd_f32x8.load(vector), scaling))


@inlined
def score_block(call: AttentionCall, tile: Tile, source: int, start: int, stop: int) -> None:
    """Compute the scores of a block of keys for a tile's queries.

    The function processes two queries at a time, and skips pairs that see none of the block's keys.

    Args:
        call: Arguments of the attention call.
        tile: Tile of queries.
        source: Address of the key head's keys.
        start: Index of the block's first key, in text order.
        stop: Index of the block's last key, plus one.
    """
    keys, stride = _stage(call, tile, source, call.key_stride, call.dim, start, stop, True)
    row_bytes, out_stride = call.dim * FLOAT_BYTES, tile.scores.shape[1] * FLOAT_BYTES
    for i in range(0, tile.length, _PAIR):
        last = min(i + 1, tile.length - 1)
        if not (reaches(call, tile, i, start, stop) or reaches(call, tile, last, start, stop)):
            continue
        queries = address(tile.queries) + i * row_bytes
        out = address(tile.scores) + i * out_stride + start * FLOAT_BYTES
        for key in range(0, stop - start, OUTPUTS):
            weights, target = keys + key * stride, out + key * FLOAT_BYTES
            _multiply(last - i + 1, queries, row_bytes, weights, stride, target, out_stride, 0)


@inlined
def weigh_scores(call: AttentionCall, tile: Tile, i: int) -> Any:
    """Convert the scores of query i to softmax weights, and return their total.

    The weights replace the scores in memory, sorted by rank. The rank of a key is its index among
    the keys that the query sees. If f is the index of the query's first visible key, the key with
    rank r has its weight at index f + r of the query's row. The total is float32, and includes the
    weight of an attention sink.
    """
    column, member = divmod(tile.first + i, call.groups)
    begin, end = tile.begin[column], tile.begin[column + 1]
    tile.cursors[i] = begin
    if begin == end:
        return np.float32(1.0)
    runs, row = tile.runs, tile.scores[i]
    start = runs[begin].start
    if call.bias:
        head = tile.head * call.groups + member
        biases = tile.biases + head * call.bias_head + column * call.bias_column
        for run in range(begin, end):
            for ordinal in range(runs[run].start, runs[run].stop):
                source = biases + cache_position(tile, ordinal) * FLOAT_BYTES
                row[ordinal] += simd_f32x8.load_float(source)
    for run in range(begin + 1, end):
        shift = start + runs[run].rank - runs[run].start
        for ordinal in range(runs[run].start, runs[run].stop):
            row[ordinal + shift] = row[ordinal]
    count = runs[end - 1].rank + runs[end - 1].stop - runs[end - 1].start
    first = address(row) + start * FLOAT_BYTES
    if call.softcap:
        cap(np.float32(call.softcap), first, first + count * FLOAT_BYTES)
    vectors = (count + _LANES - 1) // _LANES
    row[start + count : start + vectors * _LANES] = -np.inf
    largest = softmax_weighted_sum.find_largest(first, vectors)
    sink = load_sink(call, tile.head * call.groups + member)
    if call.sinks:
        largest = max(largest, sink)
    total = softmax_weighted_sum.weigh(first, vectors, np.float32(largest))
    return add_sink(total, sink, largest)


@inlined
def add_block(call: AttentionCall, tile: Tile, source: int, start: int, stop: int) -> None:
    """Add a block's weighted values to the sums of the queries that see the values.

    Args:
        call: Arguments of the attention call.
        tile: Tile of queries.
        source: Address of the key head's values.
        start: Index of the block's first key, in text order.
        stop: Index of the block's last key, plus one.
    """
    lanes = call.value_dim % _LANES
    is_half = call.kind == BFLOAT16 and stop <= tile.cached and lanes == 0
    if is_half:
        values, stride = source + start * call.value_stride, call.value_stride
    else:
        values, stride = _stage(
            call, tile, source, call.value_stride, call.value_dim, start, stop, False
        )
    size, weights = call.value_dim * FLOAT_BYTES, address(tile.weight_addresses)
    i = 0
    while i < tile.length:
        sums = address(tile.sums) + i * size
        count = _all_see(
            call, tile, i, min(softmax_weighted_sum.QUERIES, tile.length - i), start, stop
        )
        if count:
            for query in range(count):
                tile.weight_addresses[query] = _weight_address(call, tile, i + query, start)
            add_values(weights, values, stride, stop - start, sums, size, count, is_half)
            i += count
            continue
        end = tile.begin[(tile.first + i) // call.groups + 1]
        while tile.cursors[i] < end and tile.runs[tile.cursors[i]].start < stop:
            run = tile.runs[tile.cursors[i]]
            low, high = max(start, run.start), min(stop, run.stop)
            if low < high:
                tile.weight_addresses[0] = _weight_address(call, tile, i, low)
                first = values + (low - start) * stride
                add_values(weights, first, stride, high - low, sums, size, 1, is_half)
            if run.stop > stop:
                break
            tile.cursors[i] += 1
        i += 1


@inlined
def _all_see(call: AttentionCall, tile: Tile, first: int, count: int, start: int, stop: int) -> int:
    """Return `count` if all `count` queries see every key of a block, otherwise 0.

    The function also updates `tile.cursors`, which contains the index of a run of visible keys for
    each query. It advances each index to the first run whose last key is `start` or a later key.

    Args:
        call: Arguments of the attention call.
        tile: Tile of queries.
        first: Index of the first query in the tile.
        count: Number of queries.
        start: Index of the block's first key, in text order.
        stop: Index of the block's last key, plus one.
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
def _weight_address(call: AttentionCall, tile: Tile, i: int, ordinal: int) -> int:
    """Return the address of query i's weight for the key with index `ordinal`.

    `weigh_scores` describes where the softmax weights are stored. The key must belong to the run of
    visible keys with the index `tile.cursors[i]`.
    """
    first, run = tile.runs[tile.begin[(tile.first + i) // call.groups]], tile.runs[tile.cursors[i]]
    index = first.start + run.rank + ordinal - run.start
    return int(address(tile.scores) + (i * tile.scores.shape[1] + index) * FLOAT_BYTES)


@inlined
def _stage(
    call: AttentionCall,
    tile: Tile,
    source: int,
    stride: int,
    dim: int,
    start: int,
    stop: int,
    fills_up: bool,
) -> tuple[int, int]:
    """Return the address and stride of a block's keys or values in float32.

    If the kernel cannot read the block in place, the function copies the block to `tile.block`.

    Args:
        call: Arguments of the attention call.
        tile: Tile of queries.
        source: Address of the key head's keys or values.
        stride: Distance between consecutive cache positions, in bytes.
        dim: Number of elements per key or value.
        start: Index of the block's first key, in text order.
        stop: Index of the block's last key, plus one.
        fills_up: Whether to append keys of zeros, so that the number of keys is a multiple of four.
    """
    first = cache_position(tile, start)
    adjacent = call.kind == FLOAT32 and not (fills_up and (stop - start) % OUTPUTS)
    for ordinal in range(max(start, tile.cached), stop):
        adjacent = adjacent and tile.tail[ordinal - tile.cached] == first + ordinal - start
    if adjacent:
        return source + first * stride, stride
    target = address(tile.block)
    for ordinal in range(start, stop):
        key = source + cache_position(tile, ordinal) * stride
        load_row(call.kind, key, target + (ordinal - start) * dim * FLOAT_BYTES, dim)
    if fills_up:
        end = (stop - start + OUTPUTS - 1) // OUTPUTS * OUTPUTS
        tile.block[(stop - start) * dim : end * dim] = 0.0
    return target, dim * FLOAT_BYTES
