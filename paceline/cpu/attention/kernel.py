"""Compute batch-invariant attention with vector instructions.

A query's output depends only on the query and on the keys that the query sees, bit for bit. Other
queries, the cache positions of keys, the length of the cache and the number of threads have no
effect. A key's rank is its index among the keys that the query sees, in text order. All sums are
float32, and the kernel computes them in this order:

- Score of a query and a key: the kernel scales the query, and then adds the products in the order
  that the module `fma_dot` describes. For bfloat16 queries and keys on processors with AVX512_BF16,
  the module `attention.dotted` describes the order. A bias is added last.
- Softmax: exp(score - largest score of all visible keys).
- Total weight: eight lanes sum the weights of the visible keys. Lane l sums the weights of the keys
  with rank l, l + 8, l + 16, and so on. The kernel adds the lanes as in `fma_dot`, and adds the
  weight of an attention sink last.
- Output in each dimension: fused multiply-adds of weight and value, key by key in text order, then
  a division by the total weight.

The kernel divides keys into blocks, and queries into tiles. This division does not affect the order
of a sum.
"""

from __future__ import annotations

import numpy as np

from paceline.cpu import simd_f32x8, softmax_weighted_sum
from paceline.cpu.attention.call import (
    BLOCK,
    CALL,
    AttentionCall,
    Tile,
    output_index,
    read_call,
    row_biases,
    row_queries,
    take_tile,
    visible_keys,
)
from paceline.cpu.attention.dotted import QUERIES, is_dotted, pack_queries, score_dotted
from paceline.cpu.attention.passes import add_block, load_queries, score_block, weigh_scores
from paceline.cpu.memory import BFLOAT16, FLOAT_BYTES, HALF_BYTES, VECTOR_BYTES, address
from paceline.cpu.thread_team import TeamJob
from paceline.util.compiled import inlined


def _attend(call_address: int) -> int:
    """Process tiles of queries; return how many this thread processed.

    Args:
        call_address: Address of an `AttentionCall`.
    """
    call = read_call(call_address)
    keys = visible_keys(call)
    queries = np.empty((call.tile + 1, call.dim), dtype=np.float32)
    scores = np.empty((call.tile, call.keys + BLOCK), dtype=np.float32)
    sums = np.empty((call.tile, call.value_dim), dtype=np.float32)
    totals = np.empty(call.tile, dtype=np.float32)
    cursors = np.empty(call.tile, dtype=np.int64)
    block = np.empty(BLOCK * max(call.dim, call.value_dim), dtype=np.float32)
    products = np.empty((QUERIES, BLOCK), dtype=np.float32)
    weight_addresses = np.empty(softmax_weighted_sum.QUERIES, dtype=np.int64)
    num_done = 0
    row, head, first, length = take_tile(call_address, call, keys.starts)
    while length:
        tile = Tile(
            keys.key_rows[row],
            head,
            first,
            length,
            row_queries(call, keys.starts, row),
            row_biases(call, keys.starts, row),
            keys.starts[row],
            keys.runs,
            keys.begin[keys.starts[row] : keys.starts[row + 1] + 1],
            keys.cached[row],
            keys.tail[row],
            queries,
            scores,
            sums,
            totals,
            cursors,
            block,
            products,
            weight_addresses,
        )
        _attend_tile(call, tile)
        num_done += 1
        row, head, first, length = take_tile(call_address, call, keys.starts)
    return num_done


attend = TeamJob(_attend, CALL)


@inlined
def _attend_tile(call: AttentionCall, tile: Tile) -> None:
    """Compute a tile's scores, softmax weights and weighted sums, in three passes."""
    low, high = _span(call, tile)
    keys = call.key + tile.row * call.key_row + tile.head * call.key_head
    if is_dotted(call):
        pack_queries(call, tile)
        for start in range(low, high, BLOCK):
            score_dotted(call, tile, keys, start, min(start + BLOCK, high))
    else:
        load_queries(call, tile)
        for start in range(low, high, BLOCK):
            score_block(call, tile, keys, start, min(start + BLOCK, high))
    for i in range(tile.length):
        tile.totals[i] = weigh_scores(call, tile, i)
    tile.sums[: tile.length] = 0.0
    values = call.value + tile.row * call.value_row + tile.head * call.value_head
    for start in range(low, high, BLOCK):
        add_block(call, tile, values, start, min(start + BLOCK, high))
    _write_out(call, tile)


@inlined
def _span(call: AttentionCall, tile: Tile) -> tuple[int, int]:
    """Return the range of keys that a tile's queries see.

    Indices are in text order. The result is the first key's index, and the last key's index plus
    one.
    """
    low, high = call.keys, 0
    for column in range(
        tile.first // call.groups, (tile.first + tile.length - 1) // call.groups + 1
    ):
        begin, end = tile.begin[column], tile.begin[column + 1]
        if begin < end:
            low, high = min(low, tile.runs[begin].start), max(high, tile.runs[end - 1].stop)
    return low, high


@inlined
def _write_out(call: AttentionCall, tile: Tile) -> None:
    """Divide a tile's weighted sums by the total weights, and write the output."""
    size = call.value_dim * FLOAT_BYTES
    for i in range(tile.length):
        column, member = divmod(tile.first + i, call.groups)
        index = output_index(call, tile.outputs + column, tile.head, member)
        total = simd_f32x8.splat(tile.totals[i])
        for offset in range(0, size, VECTOR_BYTES):
            vector = simd_f32x8.load(address(tile.sums) + i * size + offset)
            quotient = simd_f32x8.divide(vector, total)
            if call.kind == BFLOAT16:
                target = call.out + (index * size + offset) // FLOAT_BYTES * HALF_BYTES
                simd_f32x8.store_bfloat16(target, quotient)
            else:
                simd_f32x8.store(call.out + index * size + offset, quotient)
