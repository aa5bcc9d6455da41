"""Compute attention scores of bfloat16 states with AVX512_BF16 dot products.

The dot products need only a quarter as many instructions as the general kernel. The dot product of
a query and a key is computed in four lanes. Each lane adds the products of these dimensions, in
this order:

    lane 0:  1, 0,  9,  8, ...
    lane 1:  3, 2, 11, 10, ...
    lane 2:  5, 4, 13, 12, ...
    lane 3:  7, 6, 15, 14, ...

The score is ((lane 0 + lane 2) + (lane 1 + lane 3)) * scaling. The number of queries and keys that
are processed together does not affect this order.
"""

from __future__ import annotations

import numpy as np

from paceline.cpu import avx512_dot, softmax_weighted_sum
from paceline.cpu.attention.call import BLOCK, AttentionCall, Tile, cache_position, reaches
from paceline.cpu.avx512_dot import ALL_PARTS, CHUNK, LINE, MAX_BLOCKS, OUTPUTS, ROWS, STRIDE
from paceline.cpu.memory import BFLOAT16, FLOAT_BYTES, HALF_BYTES, address
from paceline.cpu.row_blocks import count_blocks, pack_row, packed_row
from paceline.util.compiled import inlined

QUERIES = MAX_BLOCKS * ROWS  # maximum number of queries whose scores are computed together
_LANES = softmax_weighted_sum.STEP // FLOAT_BYTES
_AVAILABLE = avx512_dot.available()
_multiply = avx512_dot.multiply_blocks()


@inlined
def is_dotted(call: AttentionCall) -> bool:
    """Return whether this module should compute the scores of an attention call."""
    return _AVAILABLE and call.kind == BFLOAT16 and call.dim * HALF_BYTES % LINE == 0


@inlined
def pack_queries(call: AttentionCall, tile: Tile) -> None:
    """Pack a tile's queries in blocks of four.

    If the last block is incomplete, copies of the last query fill the block.
    """
    size = call.dim * HALF_BYTES
    for i in range(count_blocks(tile.length) * ROWS):
        column, member = divmod(tile.first + min(i, tile.length - 1), call.groups)
        head = tile.head * call.groups + member
        source = tile.origin + head * call.query_head + column * call.query_column
        pack_row(source, packed_row(address(tile.queries), i, size), size)


@inlined
def score_dotted(call: AttentionCall, tile: Tile, source: int, start: int, stop: int) -> None:
    """Compute the scores of a block of keys for a tile's queries.

    The function processes the queries in groups, and skips groups that see none of the block's
    keys.

    Args:
        call: Arguments of the attention call.
        tile: Tile of queries.
        source: Address of the key head's keys.
        start: Index of the block's first key, in text order.
        stop: Index of the block's last key, plus one.
    """
    size = call.dim * HALF_BYTES
    is_ahead = stop + BLOCK <= tile.cached and call.key_stride == size
    ahead, parts = BLOCK * size, ALL_PARTS if is_ahead else 0
    keys = _stage(call, tile, source, size, start, stop)
    for first in range(0, tile.length, QUERIES):
        count = min(QUERIES, tile.length - first)
        is_seen = False
        for i in range(first, first + count):
            is_seen = is_seen or reaches(call, tile, i, start, stop)
        if not is_seen:
            continue
        queries = address(tile.queries) + first * size
        for key in range(0, stop - start, OUTPUTS):
            target = address(tile.products) + key * FLOAT_BYTES
            blocks = count_blocks(count)
            _multiply(blocks, queries, keys + key * size, size, target, ahead, parts)
        parts = 0  # the first group prefetches the next keys for all groups
        _write_scores(call, tile, first, count, start, stop)


@inlined
def _stage(call: AttentionCall, tile: Tile, source: int, size: int, start: int, stop: int) -> int:
    """Return the address of a block's keys, stored contiguously in groups of eight.

    If the keys in the cache are not contiguous, or do not fill the last group, the function copies
    the keys and pads the copy with zeros.

    Args:
        call: Arguments of the attention call.
        tile: Tile of queries, whose buffer `block` receives the copy.
        source: Address of the key head's keys.
        size: Size of a key in bytes.
        start: Index of the block's first key, in text order.
        stop: Index of the block's last key, plus one.
    """
    if call.key_stride == size and stop <= tile.cached and (stop - start) % OUTPUTS == 0:
        return source + start * size
    target: int = address(tile.block)
    tile.block[:] = 0.0
    for ordinal in range(start, stop):
        key = source + cache_position(tile, ordinal) * call.key_stride
        for offset in range(0, size, CHUNK):
            avx512_dot.copy_chunk(key + offset, target + (ordinal - start) * size + offset)
    return target


@inlined
def _write_scores(
    call: AttentionCall, tile: Tile, first: int, count: int, start: int, stop: int
) -> None:
    row_bytes, vectors = tile.scores.shape[1] * FLOAT_BYTES, (stop - start + _LANES - 1) // _LANES
    for i in range(count):
        source = address(tile.products) + i * STRIDE
        target = address(tile.scores) + (first + i) * row_bytes + start * FLOAT_BYTES
        softmax_weighted_sum.scale(source, target, vectors, np.float32(call.scaling))
