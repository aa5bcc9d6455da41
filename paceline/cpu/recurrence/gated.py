"""Run recurrences with one state matrix per head along trees and accepted paths.

The columns of a state matrix are independent. A task therefore covers only a block: a few columns
(lanes) of one head, for one request. The states of a block fit into the L1 cache. Each thread
claims tasks until none are left. `state_rows` describes the order of all sums. A token's result
depends, bit for bit, only on the token and the text before it. Neither other tokens nor the
division of the text into forward passes affects the result.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from paceline.cpu import simd_f32x8
from paceline.cpu.memory import (
    BFLOAT16,
    FLOAT32,
    FLOAT_BYTES,
    HALF_BYTES,
    VECTOR_BYTES,
    address,
    aligned,
    copy,
    load_lanes,
)
from paceline.cpu.recurrence.state_rows import BLOCK_BYTES, LANES, advance_rows, sum_rows
from paceline.cpu.recurrence.tree_call import (
    PathArrays,
    PathCall,
    TreeArrays,
    TreeCall,
    copy_rows,
    counter_of,
    read_path,
    read_record,
    read_tree,
    run_tasks,
)
from paceline.cpu.thread_team import TeamJob
from paceline.util.compiled import inlined, record_dtype

MAX_VECTORS = 2  # vectors per block; with four partial sums, they hide the latency of additions
_sum_one, _sum_two = sum_rows(1), sum_rows(2)
_advance_one, _advance_two = advance_rows(1), advance_rows(2)


class GatedCall(TreeCall):
    """The arguments of a gated recurrence along a tree.

    Tensors are contiguous. Strides are in bytes, and sizes in elements.
    """

    query: int  # Float32 [tokens, groups, rows].
    key: int  # In the shape of the query.
    read_key: int  # In the shape of the query: the key that reads the previous state.
    decay: int  # Float32 [tokens, heads, 1 or rows].
    gain: int  # Float32 [tokens, heads].
    skip: int  # Float32 [heads], or 0.
    value: int  # Shape [tokens, heads, lanes].
    value_token: int
    value_head: int
    kind: int  # Number format of the values, see `memory`.
    held: int  # Stored states, float32 [slots, heads, rows, lanes].
    after: int  # States after the pending tokens, float32 [requests, heads, rows, lanes], or 0.
    out: int  # Float32 or bfloat16 [tokens, heads, lanes].
    out_kind: int
    updates: int  # Float32 [tokens, heads, lanes].
    heads: int
    groups: int
    rows: int  # A multiple of 8.
    lanes: int  # A multiple of 16.
    vectors: int  # Vectors per row of a block.
    is_delta: int  # Whether the delta rule applies.
    decays_rows: int  # Whether each row of a state has its own decay.
    num_states: int  # Number of a block's states that a thread stores at the same time.
    taken: int  # Number of tasks that threads have claimed; initially 0.


GATED_CALL = record_dtype(GatedCall)
_TAKEN = counter_of(GATED_CALL)


class FoldCall(PathCall):
    """The arguments for advancing stored states along paths.

    Fields have the same meaning as in `GatedCall`.
    """

    key: int
    decay: int
    updates: int
    held: int
    start: int  # States before the path, [requests, ...]; 0 means the stored states.
    heads: int
    groups: int
    rows: int
    lanes: int
    vectors: int
    decays_rows: int
    taken: int


FOLD_CALL = record_dtype(FoldCall)
_FOLD_TAKEN = counter_of(FOLD_CALL)


def _walk(call_address: int) -> int:
    """Run tasks of a `GatedCall`; return how many this thread ran."""
    call = read_record(call_address, GATED_CALL)
    count = call.requests * call.heads * call.lanes // (LANES * call.vectors)
    states = np.empty(call.num_states * call.rows * call.vectors * LANES + LANES, dtype=np.float32)
    lanes = np.empty(2 * MAX_VECTORS * LANES, dtype=np.float32)
    counter = call_address + _TAKEN
    return run_tasks(counter, count, _walk_block, call, read_tree(call), states, lanes)


walk = TeamJob(_walk, GATED_CALL)


@inlined
def _walk_block(call: GatedCall, tree: TreeArrays, task: int, memory: Any, lanes: Any) -> None:
    """Run the recurrence along a request's tree for one block of a head's state.

    Args:
        call: Arguments of the recurrence.
        tree: Tokens of the forward pass.
        task: Index of the task, which determines the request, the head and the block.
        memory: Memory for the block's states.
        lanes: Memory for a token's update and output.
    """
    blocks = call.lanes // (LANES * call.vectors)
    request, head, block = task // blocks // call.heads, task // blocks % call.heads, task % blocks
    states, block_bytes = aligned(memory), call.vectors * BLOCK_BYTES
    state_bytes = call.rows * block_bytes
    row_bytes, offset = call.lanes * FLOAT_BYTES, block * block_bytes
    head_bytes = call.rows * row_bytes
    for token in range(tree.pending[request] + tree.nodes[request]):
        column, source = tree.columns[request, token], tree.sources[request, token]
        before, stride = states + source * state_bytes, block_bytes
        if source < 0:
            index = tree.slots[request] * call.heads + head
            before, stride = call.held + index * head_bytes + offset, row_bytes
        after = states + tree.targets[request, token] * state_bytes
        _take_step(call, column, head, offset, (before, stride, after), address(lanes))
        if call.after and token == tree.pending[request] - 1:
            target = call.after + (request * call.heads + head) * head_bytes + offset
            copy_rows(after, block_bytes, target, row_bytes, call.rows, block_bytes)


@inlined
def _take_step(
    call: GatedCall,
    column: int,
    head: int,
    offset: int,
    state: tuple[int, int, int],
    lanes: int,
) -> None:
    """Compute a token's update, state and output for one block.

    A block is a group of lanes (columns) in the state matrix of one head.

    Args:
        call: Arguments of the recurrence.
        column: Index of the token in the forward pass.
        head: Index of the block's head.
        offset: Distance from the head's first lane to the block's first lane, in bytes.
        state: Three numbers: the address of the block's state before the token, the distance
            between its rows in bytes, and the address for the block's state after the token. The
            function writes the new state in contiguous rows.
        lanes: Address of memory for the block's update, followed by the block's output.
    """
    before, stride, after = state
    group = head // (call.heads // call.groups)
    item = column * call.heads + head
    rows = (column * call.groups + group) * call.rows * FLOAT_BYTES
    decay_stride = FLOAT_BYTES if call.decays_rows else 0
    decay = call.decay + item * FLOAT_BYTES * (call.rows if call.decays_rows else 1)
    size = call.vectors * BLOCK_BYTES
    if call.is_delta:
        if call.vectors == 1:
            _sum_one(before, stride, call.read_key + rows, call.rows, lanes)
        else:
            _sum_two(before, stride, call.read_key + rows, call.rows, lanes)
    factor = np.float32(1.0) if call.decays_rows else simd_f32x8.load_float(decay)
    decays = simd_f32x8.splat(factor)
    gains = simd_f32x8.splat(simd_f32x8.load_float(call.gain + item * FLOAT_BYTES))
    updates = call.updates + item * call.lanes * FLOAT_BYTES + offset
    for shift in range(0, size, VECTOR_BYTES):
        value = _load_value(call, column, head, offset + shift)
        if call.is_delta:
            read = simd_f32x8.multiply(simd_f32x8.load(lanes + shift), decays)
            value = simd_f32x8.subtract(value, read)
        value = simd_f32x8.multiply(value, gains)
        simd_f32x8.store(lanes + shift, value)
        simd_f32x8.store(updates + shift, value)
    key, query = call.key + rows, call.query + rows
    if call.vectors == 1:
        _advance_one(before, stride, after, key, query, decay, decay_stride, call.rows, lanes)
    else:
        _advance_two(before, stride, after, key, query, decay, decay_stride, call.rows, lanes)
    for shift in range(0, size, VECTOR_BYTES):
        output = simd_f32x8.load(lanes + size + shift)
        if call.skip:
            skips = simd_f32x8.splat(simd_f32x8.load_float(call.skip + head * FLOAT_BYTES))
            output = simd_f32x8.fused(
                skips, _load_value(call, column, head, offset + shift), output
            )
        _store_output(call, item * call.lanes * FLOAT_BYTES + offset + shift, output)


@inlined
def _load_value(call: GatedCall, column: int, head: int, offset: int) -> Any:
    """Load eight lanes of a token's value in one head, and return them in float32.

    `column` is the index of the token. For every dtype of the values, `offset` is four times the
    index of the first of these lanes.
    """
    source = call.value + column * call.value_token + head * call.value_head
    if call.kind != FLOAT32:
        return load_lanes(call.kind, source + offset // FLOAT_BYTES * HALF_BYTES)
    return simd_f32x8.load(source + offset)


@inlined
def _store_output(call: GatedCall, offset: int, output: Any) -> None:
    """Store eight lanes of the output in the output's number format.

    For every number format, `offset` is four times the index of the first of these numbers in the
    whole output.
    """
    if call.out_kind == BFLOAT16:
        simd_f32x8.store_bfloat16(call.out + offset // FLOAT_BYTES * HALF_BYTES, output)
    else:
        simd_f32x8.store(call.out + offset, output)


def _fold(call_address: int) -> int:
    """Run tasks of a `FoldCall`; return how many this thread ran."""
    call = read_record(call_address, FOLD_CALL)
    count = call.requests * call.heads * call.lanes // (LANES * call.vectors)
    state = np.empty(call.rows * call.vectors * LANES + LANES, dtype=np.float32)
    lanes = np.empty(2 * MAX_VECTORS * LANES, dtype=np.float32)
    counter = call_address + _FOLD_TAKEN
    return run_tasks(counter, count, _fold_block, call, read_path(call), state, lanes)


fold = TeamJob(_fold, FOLD_CALL)


@inlined
def _fold_block(call: FoldCall, path: PathArrays, task: int, memory: Any, lanes: Any) -> None:
    """Advance one block of a head's stored state over the tokens of a request's path.

    Args:
        call: Arguments for advancing the states.
        path: Tokens of all paths.
        task: Index of the task, which determines the request, the head and the block.
        memory: Memory for the block's state.
        lanes: Memory for a token's update and output.
    """
    blocks = call.lanes // (LANES * call.vectors)
    request, head, block = task // blocks // call.heads, task // blocks % call.heads, task % blocks
    state, update, block_bytes = aligned(memory), address(lanes), call.vectors * BLOCK_BYTES
    row_bytes, offset = call.lanes * FLOAT_BYTES, block * block_bytes
    head_bytes = call.rows * row_bytes
    held = call.held + (path.slots[request] * call.heads + head) * head_bytes + offset
    before, stride = held, row_bytes
    if call.start:
        before = call.start + (request * call.heads + head) * head_bytes + offset
    group = head // (call.heads // call.groups)
    for step in range(path.starts[request], path.starts[request + 1]):
        column = path.columns[step]
        item = column * call.heads + head
        key = call.key + (column * call.groups + group) * call.rows * FLOAT_BYTES
        decay_stride = FLOAT_BYTES if call.decays_rows else 0
        decay = call.decay + item * FLOAT_BYTES * (call.rows if call.decays_rows else 1)
        copy(call.updates + item * call.lanes * FLOAT_BYTES + offset, update, block_bytes)
        # Pass the key as the query, because the output is not used.
        if call.vectors == 1:
            _advance_one(before, stride, state, key, key, decay, decay_stride, call.rows, update)
        else:
            _advance_two(before, stride, state, key, key, decay, decay_stride, call.rows, update)
        before, stride = state, block_bytes
    if before != held:
        copy_rows(before, stride, held, row_bytes, call.rows, block_bytes)
