"""Scores of bfloat16 queries and keys by dot products of the processor's own (AVX512_BF16): a
quarter of the instructions.

A score is made in this order: lane l of four sums the products of the dims 2 l + 1 and 2 l, 2 l + 9
and 2 l + 8, ... (`paceline.cpu.avx512_dot`); then lanes l and l + 2 are added, 0 and 1; the sum is
multiplied by the scaling. How many queries and keys are computed together is a matter of registers.
"""

from __future__ import annotations

import numpy as np

from paceline.cpu import avx512_dot, softmax_weighted_sum
from paceline.cpu.attention.call import BLOCK, AttentionCall, Tile, reaches
from paceline.cpu.attention.tiles import BFLOAT16, FLOAT, address
from paceline.util.compiled import inlined

QUERIES = avx512_dot.BLOCKS * avx512_dot.ROWS  # that are scored together at most
_AVAILABLE = avx512_dot.available()

_one, _two, _three = (
    avx512_dot.multiply_blocks(count) for count in range(1, avx512_dot.BLOCKS + 1)
)


@inlined
def is_dotted(call: AttentionCall) -> bool:
    """Whether scores are made so."""
    return _AVAILABLE and call.kind == BFLOAT16 and call.dim * 2 % avx512_dot.LINE == 0


@inlined
def lay_queries(call: AttentionCall, tile: Tile) -> None:
    """Write the queries as blocks of four, piece by piece; the last query fills up the last
    block.
    """
    size = call.dim * FLOAT // 2
    for i in range((tile.length + avx512_dot.ROWS - 1) // avx512_dot.ROWS * avx512_dot.ROWS):
        column, member = divmod(tile.first + min(i, tile.length - 1), call.groups)
        head = tile.head * call.groups + member
        source = tile.origin + head * call.query_head + column * call.query_column
        target = (
            address(tile.queries)
            + i // avx512_dot.ROWS * avx512_dot.ROWS * size
            + i % avx512_dot.ROWS * avx512_dot.PIECE
        )
        for place in range(0, size, avx512_dot.PIECE):
            avx512_dot.copy_piece(source + place, target + place * avx512_dot.ROWS)


@inlined
def score_dotted(call: AttentionCall, tile: Tile, source: int, start: int, stop: int) -> None:
    """Scores of a block of keys, of the groups of queries of which one may see some of them."""
    size = call.dim * FLOAT // 2
    ahead, parts = (
        BLOCK * size,
        avx512_dot.ALL if stop + BLOCK <= tile.cached and call.key_place == size else 0,
    )
    keys = _stage(call, tile, source, size, start, stop)
    for first in range(0, tile.length, QUERIES):
        count = min(QUERIES, tile.length - first)
        seen = False
        for i in range(first, first + count):
            seen = seen or reaches(call, tile, i, start, stop)
        if not seen:
            continue
        queries = address(tile.queries) + first * size
        for place in range(0, stop - start, avx512_dot.OUTPUTS):
            target = address(tile.products) + place * FLOAT
            if count > 2 * avx512_dot.ROWS:
                _three(queries, keys + place * size, size, target, ahead, parts)
            elif count > avx512_dot.ROWS:
                _two(queries, keys + place * size, size, target, ahead, parts)
            else:
                _one(queries, keys + place * size, size, target, ahead, parts)
        parts = 0  # they are on their way
        _write_scores(call, tile, first, count, start, stop)


@inlined
def _stage(call: AttentionCall, tile: Tile, source: int, size: int, start: int, stop: int) -> int:
    """Return an address at which the keys start .. stop - 1 lie side by side, and zeros up to a
    multiple of eight of them.
    """
    if call.key_place == size and stop <= tile.cached and (stop - start) % avx512_dot.OUTPUTS == 0:
        return source + start * size
    target: int = address(tile.block)
    tile.block[:] = 0.0
    for ordinal in range(start, stop):
        place = ordinal if ordinal < tile.cached else tile.tail[ordinal - tile.cached]
        for part in range(0, size, avx512_dot.PIECE):
            avx512_dot.copy_piece(
                source + place * call.key_place + part, target + (ordinal - start) * size + part
            )
    return target


@inlined
def _write_scores(
    call: AttentionCall, tile: Tile, first: int, count: int, start: int, stop: int
) -> None:
    row, vectors = tile.scores.shape[1] * FLOAT, (stop - start + 15) // 16
    for i in range(count):
        source, target = (
            address(tile.products) + i * avx512_dot.STRIDE,
            address(tile.scores) + (first + i) * row + start * FLOAT,
        )
        softmax_weighted_sum.scale(source, target, vectors, np.float32(call.scaling))
