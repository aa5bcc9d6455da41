"""What one call of the kernel of attention by position is given, and what it holds of a tile of
queries.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from paceline.core.attention_metadata import KeyRun
from paceline.core.tree import IntArray
from paceline.util.compiled import Records, inlined, record_dtype

FloatArray = NDArray[np.float32]
BLOCK = 64  # keys that are read together


class AttentionCall:
    """One call: where the tensors lie (addresses, strides in bytes, neighbours in the last dim
    adjacent), how large they are.
    """

    query: int  # [rows, heads, columns, dim], or [1, heads, columns of all rows, dim]
    query_row: int
    query_head: int
    query_column: int
    key: int  # [rows, key heads, places, dim]
    key_row: int
    key_head: int
    key_place: int
    value: int  # [rows, key heads, places, value dim]
    value_row: int
    value_head: int
    value_place: int
    out: int  # [queries, heads, value dim], contiguous; bfloat16 where the others are, else float32
    sinks: int  # float32 [heads], contiguous; 0 without
    rows: int
    key_heads: int
    groups: int  # query heads per key head
    columns: int  # of the row with most
    packed: int  # whether all columns lie in one row of query and out, see `VisibleRanges`
    dim: int  # multiples of 8
    value_dim: int
    kind: int  # how the numbers of query, key and value are stored, see `tiles`
    tile: int  # most queries (of all heads of a group) that are looked at together
    keys: int  # most keys of a row
    scaling: float
    softcap: float  # 0 without
    runs: int  # address of the runs of all queries, see `VisibleRanges`
    begin: int  # of [queries + 1]
    starts: int  # of [rows + 1]
    cached: int  # of [rows], see `AttentionMetadata`
    tail: int  # of [rows, tail_places]
    run_count: int
    tail_places: int
    taken: int  # tiles that some thread has taken; 0 at first


CALL = record_dtype(AttentionCall)
TAKEN = CALL.fields["taken"][1]


class Tile(NamedTuple):
    """The queries `first` .. `first + length - 1` of a row and a key head; query i is of column i
    // groups, member i % groups.

    Attributes:
        origin: address of the row's first column in the queries; outputs: its number among all
            queries.
        runs, begin: what the columns of the row see, see `VisibleRanges`; cached, tail: its keys by
            position, see `AttentionMetadata`.
        queries: [more than tile, dim], multiplied by the scaling, or as `dotted` has them; scores:
            [tile, more than keys]; sums: [tile, value dim]; totals: [tile].
        cursors: [tile], the run of each query that reaches into the block under way, or a run
            before it.
        block: room for the keys or values of a block; products: for its scores, as `dotted` makes
            them.
        places: [4], where the weights of queries lie whose sums are made together.
    """

    row: int
    head: int
    first: int
    length: int
    origin: int
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
    places: IntArray


@inlined
def reaches(call: AttentionCall, tile: Tile, i: int, start: int, stop: int) -> bool:
    """Whether the keys of query i of the tile reach from before `stop` to behind `start`."""
    column = (tile.first + i) // call.groups
    begin, end = tile.begin[column], tile.begin[column + 1]
    return begin < end and tile.runs[begin].start < stop and tile.runs[end - 1].stop > start
