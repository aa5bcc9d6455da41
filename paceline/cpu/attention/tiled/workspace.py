"""A part of a call that a thread does at a time, and its room in memory."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from paceline.core.attention_metadata import KeyRun
from paceline.core.tree import IntArray
from paceline.cpu import amx, bf16_pack, simd_f32x8
from paceline.cpu.attention.call import AttentionCall
from paceline.cpu.attention.tiles import FLOAT, LANES
from paceline.util.compiled import Records, inlined

INNER, SIDE = 32, amx.SIDE  # dims of a query, and of a value, are multiples of these
STEP = 2 * SIDE  # keys of a product
SECTION = 8  # steps whose values are laid out together, which the nearest cache holds
# of a step in a row of scores; of its weights, the first numbers in bfloat16, then the second
BYTES = bf16_pack.STEP
HALF = FLOAT // 2


class Workspace(NamedTuple):
    """Addresses of a thread's room, and how much of it a row of scores has.

    Attributes:
        scores: of each block [16 queries, keys], float32; in the place of each step its weights
            later.
        sums: of each block [16 queries, value dims], float32. totals: of each block [16].
        queries: of a block, transposed: [dims / 2, 16], words of two numbers; copied: as they lie,
            [16, dims].
        keys: [32, dims], where they do not lie side by side. zeros: a row of values. made: scores
            of a step, [32 keys, 16].
        values: of a section, words of two keys: [16 * steps, value dims]; gathered: of a step.
        width: bytes of a row of scores.
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
    made: int
    width: int


class QueryTile(NamedTuple):
    """The queries of a row and a key head that a thread takes at a time.

    Attributes:
        first, length: of its queries; query i is of column i // groups, member i % groups. outputs:
            number of the row's first.
        query, key, value: where those of the row, and of the key head, begin.
        base: the first key that the first column sees.
        straight: so many first keys of the row lie where their ordinal says, those of a prompt too;
            tail: where the others lie.
    """

    head: int
    first: int
    length: int
    outputs: int
    query: int
    key: int
    value: int
    base: int
    runs: Records[KeyRun]
    begin: IntArray
    straight: int
    tail: IntArray


@inlined
def lanes_of(groups: int) -> int:
    """Return the most queries of a block: those of whole columns, or some of one."""
    return SIDE // groups * groups if groups <= SIDE else SIDE


@inlined
def straight_keys(cached: int, tail: IntArray) -> int:
    """Return how many first keys of a row lie one behind the other."""
    more = 0
    while more < len(tail) and tail[more] == cached + more:
        more += 1
    return int(cached + more)


@inlined
def cuts(groups: int) -> int:
    """Blocks of a column."""
    return (groups + SIDE - 1) // SIDE


@inlined
def count_queries(call: AttentionCall, part: QueryTile, i: int) -> int:
    """Return how many queries the block has that begins with query i."""
    most = lanes_of(call.groups)
    if call.groups > SIDE:
        most = min(most, call.groups - (part.first + i) % call.groups)
    return int(min(most, part.length - i))


@inlined
def place_of(part: QueryTile, ordinal: int) -> int:
    """Return where a key lies, by its position."""
    return ordinal if ordinal < part.straight else part.tail[ordinal - part.straight]


@inlined
def value_of(call: AttentionCall, part: QueryTile, ordinal: int) -> int:
    """Return the address of the value of a key."""
    return int(part.value + place_of(part, ordinal) * call.value_place)


@inlined
def row_width(call: AttentionCall) -> int:
    """Bytes of a row of scores: whole steps, and a line: rows that lie a power of two apart
    would share a place in the cache.
    """
    return (call.keys + STEP - 1) // STEP * BYTES + amx.ROW


@inlined
def room_size(call: AttentionCall, blocks: int) -> int:
    """Numbers of float32 that `lay_room` gives away, and a line more."""
    each = SIDE * (row_width(call) // FLOAT + call.value_dim + 1)
    rows = SIDE * call.dim + STEP * call.dim // 2 + call.value_dim
    return int(
        blocks * each
        + rows
        + (SECTION + 1) * SIDE * call.value_dim
        + (2 * amx.TILE + amx.ROW) // FLOAT
    )


@inlined
def lay_room(call: AttentionCall, blocks: int, place: int) -> Workspace:
    """Give away the memory at a place."""
    width = row_width(call)
    scores = place
    sums = scores + blocks * SIDE * width
    totals = sums + blocks * SIDE * call.value_dim * FLOAT
    queries = totals + blocks * amx.ROW
    copied = queries + SIDE * call.dim * HALF
    keys = copied + SIDE * call.dim * HALF
    values = keys + STEP * call.dim * HALF
    gathered = values + SECTION * SIDE * call.value_dim * FLOAT
    made = gathered + SIDE * call.value_dim * FLOAT
    zeros = made + 2 * amx.TILE
    return Workspace(
        scores, sums, totals, queries, copied, keys, zeros, values, gathered, made, width
    )


@inlined
def clear(place: int, size: int) -> None:
    """Write zeros; size: in bytes, a multiple of 32."""
    for at in range(place, place + size, LANES):
        simd_f32x8.store(at, simd_f32x8.splat(np.float32(0.0)))


@inlined
def copy(source: int, target: int, size: int) -> None:
    """Copy bytes, a multiple of 32."""
    for at in range(0, size, LANES):
        simd_f32x8.store(target + at, simd_f32x8.load(source + at))


@inlined
def pair_up(call: AttentionCall, sources: tuple[int, int], target: int) -> None:
    """Write the values of two keys as words of two numbers, one of each."""
    for d in range(0, call.value_dim * HALF, SIDE * HALF):
        bf16_pack.pair_up(sources[0] + d, sources[1] + d, target + 2 * d)
