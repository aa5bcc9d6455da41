"""Attention of a call by matrix instructions, in parts of one row and key head."""

from __future__ import annotations

import numba
import numpy as np

from paceline.core.attention_metadata import RUN
from paceline.core.tree import IntArray
from paceline.cpu import amx
from paceline.cpu.attention.call import CALL, TAKEN, AttentionCall
from paceline.cpu.attention.tiled.scores import weigh_block
from paceline.cpu.attention.tiled.sums import add_own_steps, add_steps, write_out
from paceline.cpu.attention.tiled.workspace import (
    HALF,
    INNER,
    SECTION,
    SIDE,
    QueryTile,
    Workspace,
    clear,
    count_queries,
    cuts,
    lanes_of,
    lay_room,
    pair_up,
    room_size,
    straight_keys,
    value_of,
)
from paceline.cpu.attention.tiles import BFLOAT16, FLOAT, address, aligned
from paceline.cpu.thread_team import TeamJob
from paceline.util.compiled import as_pointer, inlined, store_uint8, take_number

_CONFIGURATION = np.frombuffer(amx.configuration(), dtype=np.float32)  # 64 bytes
# where it says how many rows the tiles have that one column's products are made in
_ROWS_AT = 48 + 6


def takes(kind: int, dim: int, value_dim: int) -> bool:
    """Whether attention over numbers of a kind (see `tiles`), with so many dims, is made so."""
    return kind == BFLOAT16 and dim % INNER == 0 and value_dim % SIDE == 0 and amx.available()


def _attend(place: int) -> int:
    """Do parts of the `AttentionCall` that lies at a place until none is left; returns how many
    this thread did.
    """
    call = numba.carray(as_pointer(place), 1, CALL)[0]
    runs = numba.carray(as_pointer(call.runs), call.run_count, RUN)
    starts = numba.carray(as_pointer(call.starts), call.rows + 1, np.int64)
    begin = numba.carray(as_pointer(call.begin), starts[call.rows] + 1, np.int64)
    cached = numba.carray(as_pointer(call.cached), call.rows, np.int64)
    tail = numba.carray(as_pointer(call.tail), (call.rows, call.tail_places), np.int64)
    tiles = (call.columns * call.groups + call.tile - 1) // call.tile
    blocks = (
        call.tile // lanes_of(call.groups)
        if call.groups <= SIDE
        else call.tile // call.groups * cuts(call.groups)
    )
    # of each block, that are multiplied for all its queries at once
    steps = np.empty(blocks, dtype=np.int64)
    store = np.empty(room_size(call, blocks), dtype=np.float32)
    configuration = np.empty(16, dtype=np.float32)
    configuration[:] = _CONFIGURATION
    for tile in range(2):
        store_uint8(address(configuration) + _ROWS_AT + tile, np.uint8(min(call.groups, SIDE)))
    amx.configure(address(configuration))
    done = 0
    while True:
        task = take_number(place + TAKEN)
        if task >= call.rows * call.key_heads * tiles:
            break
        row, head, first = (
            task // tiles // call.key_heads,
            task // tiles % call.key_heads,
            task % tiles * call.tile,
        )
        done += 1
        length = min(call.tile, (starts[row + 1] - starts[row]) * call.groups - first)
        if length <= 0:  # other rows have more columns
            continue
        seen = begin[starts[row] : starts[row + 1] + 1]
        column, straight = first // call.groups, straight_keys(cached[row], tail[row])
        part = QueryTile(
            head,
            first,
            length,
            starts[row],
            call.query + (starts[row] * call.query_column if call.packed else row * call.query_row),
            call.key + row * call.key_row + head * call.key_head,
            call.value + row * call.value_row + head * call.value_head,
            runs[seen[column]].start if seen[column] < seen[column + 1] else 0,
            runs,
            seen,
            straight,
            tail[row, straight - cached[row] :],
        )
        _attend_part(call, part, lay_room(call, blocks, aligned(store)), steps)
    amx.release()
    return done


attend_tiled = TeamJob(_attend, CALL)


@inlined
def _attend_part(call: AttentionCall, part: QueryTile, room: Workspace, steps: IntArray) -> None:
    clear(room.zeros, call.value_dim * HALF)
    most, block, i = 0, 0, 0
    while i < part.length:
        count = count_queries(call, part, i)
        steps[block] = weigh_block(call, part, room, block, i, count)
        most = max(most, steps[block])
        i += count
        block += 1
    for first in range(0, most, SECTION):
        last = min(first + SECTION, most)
        for pair in range(first * SIDE, last * SIDE):
            key = part.base + 2 * pair
            sources = value_of(call, part, key), value_of(call, part, key + 1)
            pair_up(call, sources, room.values + (pair - first * SIDE) * call.value_dim * FLOAT)
        for other in range(block):
            add_steps(call, room, other, first, min(last, steps[other]))
    block, i = 0, 0
    while i < part.length:
        count = count_queries(call, part, i)
        add_own_steps(call, part, room, block, i, count, steps[block])
        write_out(call, part, room, block, i, count)
        i += count
        block += 1
