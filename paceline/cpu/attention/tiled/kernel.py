"""Compute attention with AMX, one tile of queries at a time."""

from __future__ import annotations

import numpy as np

from paceline.core.tree import IntArray
from paceline.cpu import amx
from paceline.cpu.attention.call import (
    CALL,
    AttentionCall,
    read_call,
    row_biases,
    row_queries,
    take_tile,
    visible_keys,
)
from paceline.cpu.attention.tiled.scores import weigh_block
from paceline.cpu.attention.tiled.sums import (
    COLUMN_SUMS,
    COLUMN_WEIGHTS,
    add_column_steps,
    add_steps,
    write_out,
)
from paceline.cpu.attention.tiled.workspace import (
    INNER,
    SIDE,
    QueryTile,
    TileWorkspace,
    blocks_per_tile,
    count_queries,
    lay_out,
    pair_up,
    straight_keys,
    value_of,
    workspace_size,
)
from paceline.cpu.memory import BFLOAT16, FLOAT_BYTES, HALF_BYTES, address, aligned, clear
from paceline.cpu.settings import STEPS_PER_SECTION
from paceline.cpu.thread_team import TeamJob
from paceline.util.compiled import inlined, store_uint8

_CONFIGURATION = np.frombuffer(amx.configuration(), dtype=np.float32)
_COLUMN_TILES = COLUMN_SUMS, COLUMN_WEIGHTS


def suits(kind: int, dim: int, value_dim: int) -> bool:
    """Return whether this kernel supports a number format and a head size.

    Args:
        kind: Number format of queries, keys and values.
        dim: Number of elements in a query or key.
        value_dim: Number of elements in a value.
    """
    return kind == BFLOAT16 and dim % INNER == 0 and value_dim % SIDE == 0 and amx.available()


def _attend(call_address: int) -> int:
    """Process tiles of queries; return how many this thread processed.

    Args:
        call_address: Address of an `AttentionCall`.
    """
    call = read_call(call_address)
    keys = visible_keys(call)
    blocks = blocks_per_tile(call)
    common_steps = np.empty(blocks, dtype=np.int64)
    memory = np.empty(workspace_size(call, blocks), dtype=np.float32)
    configuration = np.empty(len(_CONFIGURATION), dtype=np.float32)
    configuration[:] = _CONFIGURATION
    for tile in _COLUMN_TILES:
        height = np.uint8(min(call.groups, SIDE))
        store_uint8(address(configuration) + amx.ROWS_OFFSET + tile, height)
    amx.configure(address(configuration))
    num_done = 0
    row, head, first, length = take_tile(call_address, call, keys.starts)
    while length:
        start, stop = keys.starts[row], keys.starts[row + 1]
        begin = keys.begin[start : stop + 1]
        column, straight = first // call.groups, straight_keys(keys.cached[row], keys.tail[row])
        queries = QueryTile(
            head,
            first,
            length,
            start,
            row_queries(call, keys.starts, row),
            row_biases(call, keys.starts, row),
            call.key + keys.key_rows[row] * call.key_row + head * call.key_head,
            call.value + keys.key_rows[row] * call.value_row + head * call.value_head,
            keys.runs[begin[column]].start if begin[column] < begin[column + 1] else 0,
            keys.runs,
            begin,
            straight,
            keys.tail[row, straight - keys.cached[row] :],
        )
        _attend_tile(call, queries, lay_out(call, blocks, aligned(memory)), common_steps)
        num_done += 1
        row, head, first, length = take_tile(call_address, call, keys.starts)
    amx.release()
    return num_done


attend_tiled = TeamJob(_attend, CALL)


@inlined
def _attend_tile(
    call: AttentionCall, tile: QueryTile, space: TileWorkspace, common_steps: IntArray
) -> None:
    """Compute attention for one tile, which is divided into blocks of queries.

    The function has three phases. It computes the softmax weights of all blocks. It then adds the
    weighted values of the steps (32 consecutive keys each) that all queries of a block see.
    Finally, it adds the weighted values of the other steps, and writes the output.

    Args:
        call: Arguments of the attention call.
        tile: Tile of queries.
        space: Working memory of the thread.
        common_steps: Output array, [blocks]. It receives, for each block, the number of steps that
            all queries of the block see.
    """
    clear(space.zeros, call.value_dim * HALF_BYTES)
    max_steps, block, i = 0, 0, 0
    while i < tile.length:
        count = count_queries(call, tile, i)
        common_steps[block] = weigh_block(call, tile, space, block, i, count)
        max_steps = max(max_steps, common_steps[block])
        i += count
        block += 1
    for first in range(0, max_steps, STEPS_PER_SECTION):
        last = min(first + STEPS_PER_SECTION, max_steps)
        for pair in range(first * SIDE, last * SIDE):
            key = tile.base + 2 * pair
            sources = value_of(call, tile, key), value_of(call, tile, key + 1)
            target = space.values + (pair - first * SIDE) * call.value_dim * FLOAT_BYTES
            pair_up(call, sources, target)
        for other in range(block):
            add_steps(call, space, other, first, min(last, common_steps[other]))
    block, i = 0, 0
    while i < tile.length:
        count = count_queries(call, tile, i)
        add_column_steps(call, tile, space, block, i, count, common_steps[block])
        write_out(call, tile, space, block, i, count)
        i += count
        block += 1
