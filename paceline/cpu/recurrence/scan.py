"""Run selective scans along trees, and advance stored states along accepted paths.

The state of a single channel has only a few values, so a task covers sixteen channels of one
request. Each thread claims tasks until none are left. `state_rows.scan_rows` adds the rows of a
state in order, with fused multiply-adds.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from paceline.cpu import simd_f32x8
from paceline.cpu.memory import FLOAT_BYTES, VECTOR_BYTES, address, aligned, copy
from paceline.cpu.recurrence.state_rows import BLOCK_BYTES, LANES, scan_rows
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


class ScanCall(TreeCall):
    """The arguments of a selective scan; tensors are contiguous float32."""

    step: int  # Shape [tokens, channels].
    value: int  # In the shape of `step`.
    rate: int  # Shape [rows, channels].
    key: int  # Shape [tokens, rows].
    query: int  # In the shape of `key`.
    held: int  # Stored states, [slots, rows, channels].
    after: int  # States after the pending tokens, [requests, rows, channels], or 0.
    out: int  # Shape [tokens, channels].
    updates: int  # In the shape of `out`.
    rows: int
    channels: int  # A multiple of 16.
    num_states: int  # Number of a block's states that a thread stores at the same time.
    taken: int  # Number of tasks that threads have claimed; initially 0.


SCAN_CALL = record_dtype(ScanCall)
_TAKEN = counter_of(SCAN_CALL)


class ScanFold(PathCall):
    """The arguments for advancing stored states along paths.

    Fields have the same meaning as in `ScanCall`.
    """

    step: int
    rate: int
    key: int
    updates: int
    held: int
    start: int  # States before the path, [requests, ...]; 0 means the stored states.
    rows: int
    channels: int
    taken: int


SCAN_FOLD = record_dtype(ScanFold)
_FOLD_TAKEN = counter_of(SCAN_FOLD)


def _scan(call_address: int) -> int:
    """Run tasks of a `ScanCall`; return how many this thread ran."""
    call = read_record(call_address, SCAN_CALL)
    count = call.requests * call.channels // LANES
    states = np.empty((call.num_states * call.rows + 1) * LANES, dtype=np.float32)
    memory = np.empty(3 * LANES, dtype=np.float32)
    counter = call_address + _TAKEN
    return run_tasks(counter, count, _scan_block, call, read_tree(call), states, memory)


scan = TeamJob(_scan, SCAN_CALL)


@inlined
def _scan_block(call: ScanCall, tree: TreeArrays, task: int, memory: Any, vectors: Any) -> None:
    """Run the scan along a request's tree for sixteen channels.

    Args:
        call: Arguments of the scan.
        tree: Tokens of the forward pass.
        task: Index of the task, which determines the request and the channels.
        memory: Memory for the states of these channels.
        vectors: Memory for a token's step sizes, inputs and output.
    """
    blocks = call.channels // LANES
    request, offset = task // blocks, task % blocks * BLOCK_BYTES
    states, lanes = aligned(memory), address(vectors)
    state_bytes, row_bytes = call.rows * BLOCK_BYTES, call.channels * FLOAT_BYTES
    for token in range(tree.pending[request] + tree.nodes[request]):
        column, source = tree.columns[request, token], tree.sources[request, token]
        before, stride = states + source * state_bytes, BLOCK_BYTES
        if source < 0:
            before = call.held + tree.slots[request] * call.rows * row_bytes + offset
            stride = row_bytes
        after = states + tree.targets[request, token] * state_bytes
        shift_bytes = column * row_bytes + offset
        copy(call.step + shift_bytes, lanes, BLOCK_BYTES)
        for shift in range(0, BLOCK_BYTES, VECTOR_BYTES):
            value = simd_f32x8.load(call.value + shift_bytes + shift)
            value = simd_f32x8.multiply(value, simd_f32x8.load(lanes + shift))
            simd_f32x8.store(lanes + BLOCK_BYTES + shift, value)
        copy(lanes + BLOCK_BYTES, call.updates + shift_bytes, BLOCK_BYTES)
        rates, item = call.rate + offset, column * call.rows * FLOAT_BYTES
        scan_rows(
            before,
            stride,
            after,
            rates,
            row_bytes,
            call.key + item,
            call.query + item,
            call.rows,
            lanes,
        )
        copy(lanes + 2 * BLOCK_BYTES, call.out + shift_bytes, BLOCK_BYTES)
        if call.after and token == tree.pending[request] - 1:
            target = call.after + request * call.rows * row_bytes + offset
            copy_rows(after, BLOCK_BYTES, target, row_bytes, call.rows, BLOCK_BYTES)


def _fold(call_address: int) -> int:
    """Run tasks of a `ScanFold`; return how many this thread ran."""
    call = read_record(call_address, SCAN_FOLD)
    count = call.requests * call.channels // LANES
    state = np.empty((call.rows + 1) * LANES, dtype=np.float32)
    memory = np.empty(3 * LANES, dtype=np.float32)
    counter = call_address + _FOLD_TAKEN
    return run_tasks(counter, count, _fold_block, call, read_path(call), state, memory)


fold_scan = TeamJob(_fold, SCAN_FOLD)


@inlined
def _fold_block(call: ScanFold, path: PathArrays, task: int, memory: Any, vectors: Any) -> None:
    """Advance the stored states of sixteen channels over a request's path.

    Args:
        call: Arguments for advancing the states.
        path: Tokens of all paths.
        task: Index of the task, which determines the request and the channels.
        memory: Memory for the states of these channels.
        vectors: Memory for a token's step sizes, inputs and output.
    """
    blocks, row_bytes = call.channels // LANES, call.channels * FLOAT_BYTES
    request, offset = task // blocks, task % blocks * BLOCK_BYTES
    state, lanes = aligned(memory), address(vectors)
    held = call.held + path.slots[request] * call.rows * row_bytes + offset
    before, stride = held, row_bytes
    if call.start:
        before = call.start + request * call.rows * row_bytes + offset
    for index in range(path.starts[request], path.starts[request + 1]):
        column = path.columns[index]
        shift_bytes = column * row_bytes + offset
        copy(call.step + shift_bytes, lanes, BLOCK_BYTES)
        copy(call.updates + shift_bytes, lanes + BLOCK_BYTES, BLOCK_BYTES)
        # Pass the key as the query, because the output is not used.
        key, rates = call.key + column * call.rows * FLOAT_BYTES, call.rate + offset
        scan_rows(before, stride, state, rates, row_bytes, key, key, call.rows, lanes)
        before, stride = state, BLOCK_BYTES
    if before != held:
        copy_rows(before, stride, held, row_bytes, call.rows, BLOCK_BYTES)
