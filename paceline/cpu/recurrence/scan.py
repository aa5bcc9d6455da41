"""Run selective scans along a tree, and fold a path into the stored states.

The state of a channel has only a few values, so a task covers sixteen channels of one request.
Sums over the rows of a state are fused multiply-adds in order; see `state_rows.scan_rows`.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from paceline.cpu import simd_f32x8
from paceline.cpu.memory import FLOAT_BYTES, VECTOR_BYTES, address, aligned, copy
from paceline.cpu.recurrence.state_rows import BLOCK_BYTES, LANES, scan_rows
from paceline.cpu.recurrence.tree_call import TreeArrays, list_at, read_tree
from paceline.cpu.thread_team import TeamJob
from paceline.util.compiled import as_pointer, compiled, inlined, record_dtype, take_number


class ScanCall:
    """A selective scan; tensors are contiguous and in float32."""

    slots: int  # The first seven fields are those of `TokenTree.addresses`.
    pending: int
    nodes: int
    columns: int
    parents: int
    sources: int
    targets: int
    requests: int
    width: int
    step: int  # Shape [tokens, channels].
    value: int  # Like `step`.
    rate: int  # Shape [rows, channels].
    key: int  # Shape [tokens, rows].
    query: int  # Like `key`.
    held: int  # Shape [slots, rows, channels].
    after: int  # Shape [requests, rows, channels], or 0.
    out: int  # Shape [tokens, channels].
    updates: int  # Like `out`.
    rows: int
    channels: int  # A multiple of 16.
    num_states: int  # States of a block that a thread needs at the same time.
    taken: int  # Number of tasks that threads have taken; initially 0.


SCAN_CALL = record_dtype(ScanCall)
_TAKEN = SCAN_CALL.fields["taken"][1]


class ScanFold:
    """A fold of paths into states; see `ScanCall`."""

    slots: int  # Int64 [requests].
    columns: int  # Columns of the path, see `FoldPath`.
    starts: int
    requests: int
    step: int
    rate: int
    key: int
    updates: int
    held: int
    start: int  # States before the path, [requests, ...]; 0 means the held ones.
    rows: int
    channels: int
    taken: int


SCAN_FOLD = record_dtype(ScanFold)
_FOLD_TAKEN = SCAN_FOLD.fields["taken"][1]


@compiled
def _read_call(call_address: int) -> Any:
    return numba.carray(as_pointer(call_address), 1, SCAN_CALL)[0]


@compiled
def _read_fold(call_address: int) -> Any:
    return numba.carray(as_pointer(call_address), 1, SCAN_FOLD)[0]


def _scan(call_address: int) -> int:
    """Run tasks of the `ScanCall` at an address; return their number."""
    call = _read_call(call_address)
    tree = read_tree(call)
    blocks = call.channels // LANES
    states = np.empty((call.num_states * call.rows + 1) * LANES, dtype=np.float32)
    lanes = np.empty(3 * LANES, dtype=np.float32)
    num_done = 0
    task = take_number(call_address + _TAKEN)
    while task < call.requests * blocks:
        _scan_block(
            call, tree, task // blocks, task % blocks * BLOCK_BYTES, aligned(states), address(lanes)
        )
        num_done += 1
        task = take_number(call_address + _TAKEN)
    return num_done


scan = TeamJob(_scan, SCAN_CALL)


@inlined
def _scan_block(
    call: ScanCall, tree: TreeArrays, request: int, offset: int, states: int, lanes: int
) -> None:
    """Scan sixteen channels of a request, `offset` bytes after the first channel."""
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
            for row in range(call.rows):
                copy(after + row * BLOCK_BYTES, target + row * row_bytes, BLOCK_BYTES)


def _fold(call_address: int) -> int:
    """Run tasks of the `ScanFold` at an address; return their number."""
    call = _read_fold(call_address)
    blocks = call.channels // LANES
    state = np.empty((call.rows + 1) * LANES, dtype=np.float32)
    lanes = np.empty(3 * LANES, dtype=np.float32)
    num_done = 0
    task = take_number(call_address + _FOLD_TAKEN)
    while task < call.requests * blocks:
        _fold_block(
            call, task // blocks, task % blocks * BLOCK_BYTES, aligned(state), address(lanes)
        )
        num_done += 1
        task = take_number(call_address + _FOLD_TAKEN)
    return num_done


fold_scan = TeamJob(_fold, SCAN_FOLD)


@inlined
def _fold_block(call: ScanFold, request: int, offset: int, state: int, lanes: int) -> None:
    """Advance sixteen channels of a request along its path."""
    row_bytes = call.channels * FLOAT_BYTES
    slot = list_at(call.slots, call.requests)[request]
    held = call.held + slot * call.rows * row_bytes + offset
    before, stride = held, row_bytes
    if call.start:
        before = call.start + request * call.rows * row_bytes + offset
    starts = list_at(call.starts, call.requests + 1)
    columns = list_at(call.columns, starts[call.requests])
    for index in range(starts[request], starts[request + 1]):
        shift_bytes = columns[index] * row_bytes + offset
        copy(call.step + shift_bytes, lanes, BLOCK_BYTES)
        copy(call.updates + shift_bytes, lanes + BLOCK_BYTES, BLOCK_BYTES)
        # the key replaces the query, because the output is not used
        key, rates = call.key + columns[index] * call.rows * FLOAT_BYTES, call.rate + offset
        scan_rows(before, stride, state, rates, row_bytes, key, key, call.rows, lanes)
        before, stride = state, BLOCK_BYTES
    if before != held:
        for row in range(call.rows):
            copy(before + row * stride, held + row * row_bytes, BLOCK_BYTES)
