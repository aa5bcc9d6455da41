"""Pass attention calls to compiled kernels, and split the work into tiles."""

from __future__ import annotations

from typing import Any, NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

from paceline.backend.attention_metadata import RUN, KeyRun
from paceline.core.tree import IntArray
from paceline.cpu.settings import SUMS_PER_ROW
from paceline.util.compiled import (
    Records,
    as_pointer,
    inlined,
    record_dtype,
    subroutine,
    take_number,
)

FloatArray = NDArray[np.float32]
BLOCK = SUMS_PER_ROW  # maximum number of keys in a block, which a kernel processes together


class AttentionCall:
    """The arguments of one attention call: addresses, strides in bytes, and sizes.

    The last dimension of each tensor is contiguous. `VisibleRanges` and `AttentionMetadata`
    describe the arrays that determine which keys a query sees.
    """

    query: int  # Shape [rows, heads, columns, dim], or [1, heads, columns of all rows, dim].
    query_row: int
    query_head: int
    query_column: int
    key: int  # Shape [rows, key heads, cache positions, dim].
    key_row: int
    key_head: int
    key_stride: int  # Distance between consecutive cache positions.
    value: int  # Shape [rows, key heads, cache positions, value dim].
    value_row: int
    value_head: int
    value_stride: int
    out: int  # Contiguous [queries, heads, value dim]; bfloat16 if the query is, else float32.
    sinks: int  # Contiguous float32 [heads]; 0 without sinks.
    bias: int  # Float32, indexed as [rows, heads, columns, cache positions]; 0 without a bias.
    bias_row: int
    bias_head: int
    bias_column: int
    rows: int
    key_heads: int
    groups: int  # Query heads per key head.
    columns: int  # Number of columns in the row with the most columns.
    packed: int  # Whether one row of `query` and `out` contains all columns, see `VisibleRanges`.
    dim: int  # A multiple of 8, as is `value_dim`.
    value_dim: int
    kind: int  # Number format of query, key and value, see `memory`.
    tile: int  # Maximum number of queries in a tile; a query is one head of one column.
    keys: int  # Number of keys in the row with the most keys.
    scaling: float
    softcap: float  # 0 without a soft cap.
    runs: int  # Address of the runs of all queries, see `VisibleRanges`.
    begin: int  # Address of [queries + 1] indices of runs.
    starts: int  # Address of [rows + 1] indices of queries.
    cached: int  # Address of [rows] numbers of keys, see `AttentionMetadata`.
    tail: int  # Address of [rows, tail_width] cache positions.
    key_rows: int  # Address of [rows] rows of keys and values, see `AttentionMetadata`.
    run_count: int
    tail_width: int
    taken: int  # Number of tiles that threads have claimed; initially 0.


CALL = record_dtype(AttentionCall)
_TAKEN = CALL.fields["taken"][1]


class VisibleKeys(NamedTuple):
    """The arrays of `VisibleRanges` and `AttentionMetadata` for one attention call.

    They list the keys that each query sees, in text order.
    """

    runs: Records[KeyRun]
    begin: IntArray
    starts: IntArray
    cached: IntArray
    tail: IntArray
    key_rows: IntArray


class Tile(NamedTuple):
    """Queries that one thread processes together, and the thread's working memory.

    All queries in a tile belong to the same row of the batch and use the same key head. This key
    head is shared by `groups` query heads. Query i of the row belongs to column i // groups, and to
    the query head with index i % groups among those that share the key head.

    Attributes:
        row: Row of the key and value tensors for these queries.
        head: Index of the key head.
        first: Index of the tile's first query in the row.
        length: Number of queries in the tile.
        origin: Address of the row's first column in the query tensor.
        biases: Address of the biases for the row's first column.
        outputs: Index of the row's first column among the columns of all rows.
        runs: Runs of visible keys; see `VisibleRanges`.
        begin: Index of the first run for each column of the row.
        cached: Number of leading keys, in text order, whose cache positions are 0, 1, 2, ...
        tail: Cache positions of the other keys, in text order.
        queries: Scaled queries, [tile + 1, dim], where tile is the maximum number of queries. The
            kernel in `dotted` instead stores the unscaled queries, packed in blocks of four.
        scores: Scores, [tile, keys + `BLOCK`]. The softmax weights later replace the scores.
        sums: Weighted sums of values, [tile, value dim].
        totals: Sum of each query's softmax weights, [tile].
        cursors: Index of each query's current run, [tile]. This is the first run of visible keys
            that ends within or after the current block of keys.
        block: Copy of the current block's keys or values. The kernel uses the copy if it cannot
            read the originals in place. A block contains up to `BLOCK` keys.
        products: Scores of a block, in the layout that the kernel in `dotted` writes.
        weight_addresses: Addresses of the softmax weights of up to four queries.
    """

    row: int
    head: int
    first: int
    length: int
    origin: int
    biases: int
    outputs: int
    runs: Records[KeyRun]
    begin: IntArray
    cached: int
    tail: IntArray
    queries: FloatArray
    scores: FloatArray
    sums: FloatArray
    totals: FloatArray
    cursors: IntArray
    block: FloatArray
    products: FloatArray
    weight_addresses: IntArray


@subroutine
def read_call(address: int) -> Any:
    """Return the `AttentionCall` at an address."""
    return numba.carray(as_pointer(address), 1, CALL)[0]


@subroutine
def visible_keys(call: AttentionCall) -> VisibleKeys:
    """Return the arrays whose addresses are in a call, without copying the arrays."""
    starts = numba.carray(as_pointer(call.starts), call.rows + 1, np.int64)
    return VisibleKeys(
        numba.carray(as_pointer(call.runs), call.run_count, RUN),
        numba.carray(as_pointer(call.begin), starts[call.rows] + 1, np.int64),
        starts,
        numba.carray(as_pointer(call.cached), call.rows, np.int64),
        numba.carray(as_pointer(call.tail), (call.rows, call.tail_width), np.int64),
        numba.carray(as_pointer(call.key_rows), call.rows, np.int64),
    )


@inlined
def take_tile(address: int, call: AttentionCall, starts: IntArray) -> tuple[int, int, int, int]:
    """Claim the next tile of queries for the calling thread.

    Args:
        address: Address of `call`.
        call: Arguments of the attention call.
        starts: Index of each row's first column among the columns of all rows, [rows + 1].
    Returns:
        The tile's row, key head, index of the first query, and number of queries. If no tile is
        left, the number of queries is 0.
    """
    tiles = (call.columns * call.groups + call.tile - 1) // call.tile
    while True:
        task = take_number(address + _TAKEN)
        row = task // tiles // call.key_heads
        if row >= call.rows:
            return 0, 0, 0, 0
        first = task % tiles * call.tile
        length = min(call.tile, (starts[row + 1] - starts[row]) * call.groups - first)
        if length > 0:  # rows with fewer columns than the longest row have fewer tiles
            return row, task // tiles % call.key_heads, first, length


@inlined
def row_queries(call: AttentionCall, starts: IntArray, row: int) -> int:
    """Return the address of a row's first column in the query tensor.

    Args:
        call: Arguments of the attention call.
        starts: Index of each row's first column among the columns of all rows, [rows + 1].
        row: Index of the row in the batch.
    """
    if call.packed:
        return int(call.query + starts[row] * call.query_column)
    return int(call.query + row * call.query_row)


@inlined
def row_biases(call: AttentionCall, starts: IntArray, row: int) -> int:
    """Return the address of the biases for a row's first column.

    The arguments are the same as for `row_queries`.
    """
    if call.packed:
        return int(call.bias + starts[row] * call.bias_column)
    return int(call.bias + row * call.bias_row)


@inlined
def output_index(call: AttentionCall, column: int, head: int, member: int) -> int:
    """Return a query's index in the output [columns of all rows, heads].

    Args:
        call: Arguments of the attention call.
        column: Index of the query's column among the columns of all rows.
        head: Index of the key head.
        member: Index of the query head among the heads that share the key head.
    """
    return (column * call.key_heads + head) * call.groups + member


@inlined
def reaches(call: AttentionCall, tile: Tile, i: int, start: int, stop: int) -> bool:
    """Return whether query i may see any of the keys `start` to `stop` - 1.

    The function compares these keys only with the range from the query's first visible key to its
    last one. The result is therefore True even if all keys in the overlap are hidden.
    """
    column = (tile.first + i) // call.groups
    begin, end = tile.begin[column], tile.begin[column + 1]
    return begin < end and tile.runs[begin].start < stop and tile.runs[end - 1].stop > start


@inlined
def cache_position(tile: Tile, ordinal: int) -> int:
    """Return the cache position of the key with a given index in text order."""
    return ordinal if ordinal < tile.cached else tile.tail[ordinal - tile.cached]
