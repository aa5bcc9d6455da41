"""Define the tiles of queries that threads process, and lay out threads' memory."""

from __future__ import annotations

from typing import NamedTuple

from paceline.backend.attention_metadata import KeyRun
from paceline.core.tree import IntArray
from paceline.cpu import amx, bf16_pack
from paceline.cpu.attention.call import AttentionCall
from paceline.cpu.memory import FLOAT_BYTES, HALF_BYTES
from paceline.cpu.settings import STEPS_PER_SECTION
from paceline.util.compiled import Records, compiled, inlined

SIDE = amx.SIDE  # The number of elements in a value is a multiple of this number.
INNER = amx.ROW // HALF_BYTES  # The number of elements in a query is a multiple of this number.
STEP = 2 * SIDE  # Number of keys that one AMX instruction multiplies by their weights.
# Bytes of a step in a row of scores. The weights of a step take the same number of bytes: rounded
# numbers, followed by their rounding errors.
STEP_BYTES = bf16_pack.STEP


class TileWorkspace(NamedTuple):
    """Addresses of the buffers in a thread's working memory.

    A thread processes a tile of queries in blocks. A block is up to 16 queries, a step is 32 keys,
    and a section is up to STEPS_PER_SECTION steps. A word has 32 bits and contains two 16-bit
    elements.

    Attributes:
        scores: Scores of each block, float32 [16 queries, keys]. The softmax weights later replace
            the scores.
        sums: Weighted sums of each block, float32 [16 queries, value dim].
        totals: Sums of the softmax weights of each block, float32 [16 queries].
        queries: Transposed queries of one block, words [dim / 2, 16 queries]. A word contains two
            elements of one query.
        copied: Queries of one block before the transposition, [16 queries, dim].
        keys: Copies of one step's keys, [32, dim]. They are used if the step has fewer keys
            or the keys are not contiguous in the cache.
        zeros: A value vector of zeros.
        values: Values of one section, words [16 * steps, value dim]. A word contains one element of
            each of two value vectors.
        gathered: Values of one step, in the layout of `values`.
        products: Scores of one step, float32 [32 keys, 16 queries].
        width: Size of a row of scores in bytes.
    """

    scores: int
    sums: int
    totals: int
    queries: int
    copied: int
    keys: int
    zeros: int
    values: int
    gathered: int
    products: int
    width: int


class QueryTile(NamedTuple):
    """Queries of one batch row and key head that a thread processes together.

    A column is a query token. The key head is shared by `groups` query heads, so every column has
    `groups` queries. Query i of a row belongs to column i // groups, and to the query head with
    index i % groups among those that share the key head.

    Attributes:
        head: Index of the key head.
        first: Index of the tile's first query in the row.
        length: Number of queries in the tile.
        outputs: Index of the row's first column among the columns of all rows.
        query: Address of the row's first column in the query tensor.
        biases: Address of the biases for the row's first column.
        key: Address of the key head's keys.
        value: Address of the key head's values.
        base: Index of the first key that the tile's first column sees, in text order.
        runs: Runs of visible keys; see `VisibleRanges`.
        begin: Index of the first run for each column of the row.
        straight: Number of leading keys, in text order, whose cache positions are 0, 1, 2, ...
        tail: Cache positions of the other keys, in text order.
    """

    head: int
    first: int
    length: int
    outputs: int
    query: int
    biases: int
    key: int
    value: int
    base: int
    runs: Records[KeyRun]
    begin: IntArray
    straight: int
    tail: IntArray


@compiled
def queries_per_block(groups: int) -> int:
    """Return the maximum number of queries in a block.

    A block contains whole columns, or a part of one column. A column consists of one token's
    queries in the `groups` query heads that share a key head.
    """
    return SIDE // groups * groups if groups <= SIDE else SIDE


@inlined
def straight_keys(cached: int, tail: IntArray) -> int:
    """Return how many leading keys, in text order, have cache positions 0, 1, 2, ...

    Args:
        cached: Number of leading keys that are known to have these positions.
        tail: Cache positions of the other keys, in text order.
    """
    more = 0
    while more < len(tail) and tail[more] == cached + more:
        more += 1
    return int(cached + more)


@inlined
def blocks_per_tile(call: AttentionCall) -> int:
    """Return the maximum number of blocks in a tile of queries."""
    if call.groups <= SIDE:
        return int(call.tile // queries_per_block(call.groups))
    return int(call.tile // call.groups * ((call.groups + SIDE - 1) // SIDE))


@inlined
def count_queries(call: AttentionCall, tile: QueryTile, i: int) -> int:
    """Return the number of queries in the block that begins with query i of a tile."""
    max_queries = queries_per_block(call.groups)
    if call.groups > SIDE:
        max_queries = min(max_queries, call.groups - (tile.first + i) % call.groups)
    return int(min(max_queries, tile.length - i))


@inlined
def cache_position(tile: QueryTile, ordinal: int) -> int:
    """Return the cache position of the key with a given index in text order."""
    return ordinal if ordinal < tile.straight else tile.tail[ordinal - tile.straight]


@inlined
def value_of(call: AttentionCall, tile: QueryTile, ordinal: int) -> int:
    """Return the address of a key's value, given the key's index in text order."""
    return int(tile.value + cache_position(tile, ordinal) * call.value_stride)


@inlined
def row_width(call: AttentionCall) -> int:
    """Return the size of a row of scores in bytes.

    A row contains whole steps of 32 scores, and one additional cache line. Without this line, the
    distance between rows could be a power of two. The processor would then store all rows in the
    same few lines of its cache.
    """
    return (call.keys + STEP - 1) // STEP * STEP_BYTES + amx.ROW


@inlined
def workspace_size(call: AttentionCall, blocks: int) -> int:
    """Return the size of a thread's working memory, in float32 numbers.

    The size includes one cache line to align the address.

    Args:
        call: Arguments of the attention call.
        blocks: Maximum number of blocks in a tile.
    """
    block_size = SIDE * (row_width(call) // FLOAT_BYTES + call.value_dim + 1)
    rows = SIDE * call.dim + STEP * call.dim // 2 + call.value_dim
    return int(
        blocks * block_size
        + rows
        + (STEPS_PER_SECTION + 1) * SIDE * call.value_dim
        + (2 * amx.TILE + amx.ROW) // FLOAT_BYTES
    )


@inlined
def lay_out(call: AttentionCall, blocks: int, memory: int) -> TileWorkspace:
    """Divide a thread's working memory into buffers.

    Args:
        call: Arguments of the attention call.
        blocks: Maximum number of blocks in a tile.
        memory: Address of the memory, aligned to a cache line.
    """
    width = row_width(call)
    value_bytes = call.value_dim * FLOAT_BYTES
    scores = memory
    sums = scores + blocks * SIDE * width
    totals = sums + blocks * SIDE * value_bytes
    queries = totals + blocks * amx.ROW
    copied = queries + SIDE * call.dim * HALF_BYTES
    keys = copied + SIDE * call.dim * HALF_BYTES
    values = keys + STEP * call.dim * HALF_BYTES
    gathered = values + STEPS_PER_SECTION * SIDE * value_bytes
    products = gathered + SIDE * value_bytes
    zeros = products + 2 * amx.TILE
    return TileWorkspace(
        scores, sums, totals, queries, copied, keys, zeros, values, gathered, products, width
    )


@inlined
def pair_up(call: AttentionCall, sources: tuple[int, int], target: int) -> None:
    """Interleave the values a and b of two keys at `target`: a0 b0 a1 b1 a2 b2 ..."""
    for offset in range(0, call.value_dim * HALF_BYTES, SIDE * HALF_BYTES):
        bf16_pack.pair_up(sources[0] + offset, sources[1] + offset, target + 2 * offset)
