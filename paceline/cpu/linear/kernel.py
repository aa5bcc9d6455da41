"""Multiply a few rows by a weight with fused multiply-adds in eight lanes.

Verification multiplies a handful of rows by each weight matrix. Matrix libraries are tuned for one
row or for hundreds of rows. For a handful of rows, libraries read the weight much more slowly than
memory permits, or convert half-precision weights again for every row. This kernel reads a weight
only once. It computes four outputs at a time, and prefetches the weights of the next four outputs.

All sums are in float32, in the order that `fma_dot` describes. A row's result depends only on this
row and the weight, bit for bit.
"""

from __future__ import annotations

import numpy as np

from paceline.cpu import simd_f32x8
from paceline.cpu.fma_dot import MAX_ROWS, OUTPUTS, multiply_rows
from paceline.cpu.linear.call import (
    PRODUCT_CALL,
    SUMS_STRIDE,
    TASK,
    ProductCall,
    read_call,
    take_task,
    write_out,
)
from paceline.cpu.linear.unpack_call import UNPACK_CALL, describe, unpack_task
from paceline.cpu.memory import (
    BFLOAT16,
    FLOAT32,
    FLOAT_BYTES,
    HALF_BYTES,
    LINE_BYTES,
    address,
    load_row,
)
from paceline.cpu.settings import L1_BYTES, MIN_ROWS_PER_BLOCK
from paceline.cpu.thread_team import TeamJob
from paceline.util.compiled import inlined

_multiply_float32, _multiply_bfloat16 = multiply_rows(FLOAT32), multiply_rows(BFLOAT16)


def _multiply(call_address: int) -> int:
    """Run tasks of a `ProductCall`; return how many this thread ran."""
    call = read_call(call_address)
    kind, count, inner, outer = call.kind, call.count, call.inner, call.outer
    first = take_task(call_address)
    if first >= outer:
        return 0
    rows_in_cache = L1_BYTES // (inner * FLOAT_BYTES) - OUTPUTS
    block = max(MIN_ROWS_PER_BLOCK, rows_in_cache // MAX_ROWS * MAX_ROWS)
    few = count <= 2 * block
    scratch = np.empty((OUTPUTS if few else TASK) * inner, dtype=np.float32)
    sums = np.empty(count * TASK, dtype=np.float32)
    wide = np.empty(0 if kind == FLOAT32 else count * inner, dtype=np.float32)
    if kind != FLOAT32:
        load_row(kind, call.rows, address(wide), count * inner)
    numbers = np.empty(TASK * inner // 2 if call.unpack else 0, dtype=np.float32)
    unpacking = np.empty(1, dtype=UNPACK_CALL)
    describe(call, unpacking[0])
    num_done = 0
    while first < outer:
        width = min(TASK, outer - first)
        weight = call.weight
        if call.unpack:
            target = address(numbers)
            weight = unpack_task(call, unpacking[0], address(unpacking), first, width, target)
        # Numba frees an array after its last use: read its address inside the loop.
        rows = call.rows if kind == FLOAT32 else address(wide)
        if few:
            _multiply_few(call, weight, rows, address(sums), address(scratch), first, width)
        else:
            _multiply_many(call, weight, rows, address(sums), address(scratch), first, width, block)
        write_out(call, address(sums), 0, count, first, width)
        num_done += 1
        first = take_task(call_address)
    return num_done


multiply = TeamJob(_multiply, PRODUCT_CALL)


@inlined
def _multiply_few(
    call: ProductCall, base: int, rows: int, sums: int, scratch: int, first: int, width: int
) -> None:
    """Multiply all rows by the weights of four outputs at a time, with prefetching.

    Args:
        call: Arguments of the matrix product.
        base: Address of the weights of output 0. If only the task's weights are in memory, this
            is the address at which the weights of output 0 would be.
        rows: Address of the float32 rows.
        sums: Address of the task's sums, float32 [count, TASK].
        scratch: Address of memory for the converted weights of four outputs.
        first: Index of the task's first output.
        width: Number of outputs in the task.
    """
    kind, count, inner = call.kind, call.count, call.inner
    stride = inner * (FLOAT_BYTES if kind == FLOAT32 else HALF_BYTES)
    for output in range(first, first + width, OUTPUTS):
        weight, target = base + output * stride, sums + (output - first) * FLOAT_BYTES
        ahead = OUTPUTS * stride if output + OUTPUTS < call.outer else 0
        if kind == FLOAT32:
            _multiply_rows(rows, weight, target, count, inner, ahead)
        elif kind == BFLOAT16 and count <= MAX_ROWS:
            row_bytes = inner * FLOAT_BYTES
            _multiply_bfloat16(count, rows, row_bytes, weight, stride, target, SUMS_STRIDE, ahead)
        else:  # convert the weights only once, because several groups of rows use them
            load_row(kind, weight, scratch, OUTPUTS * inner)
            for line in range(weight + ahead, weight + 2 * ahead, LINE_BYTES):
                simd_f32x8.prefetch(line)
            _multiply_rows(rows, scratch, target, count, inner, 0)


@inlined
def _multiply_many(
    call: ProductCall,
    base: int,
    rows: int,
    sums: int,
    scratch: int,
    first: int,
    width: int,
    block: int,
) -> None:
    """Multiply rows by the weights of a task, in blocks that fit into the L1 cache.

    Args:
        call: Arguments of the matrix product.
        base: Address of the weights of output 0, as in `_multiply_few`.
        rows: Address of the float32 rows.
        sums: Address of the task's sums, float32 [count, TASK].
        scratch: Address of memory for the converted weights of the task.
        first: Index of the task's first output.
        width: Number of outputs in the task.
        block: Number of rows in a block.
    """
    count, inner = call.count, call.inner
    row_bytes = inner * FLOAT_BYTES
    source = base + first * row_bytes
    if call.kind != FLOAT32:
        source = scratch
        load_row(call.kind, base + first * inner * HALF_BYTES, scratch, width * inner)
    for row in range(0, count, block):
        block_rows, height = rows + row * row_bytes, min(block, count - row)
        for output in range(0, width, OUTPUTS):
            target = sums + row * SUMS_STRIDE + output * FLOAT_BYTES
            _multiply_rows(block_rows, source + output * row_bytes, target, height, inner, 0)


@inlined
def _multiply_rows(rows: int, weight: int, sums: int, count: int, inner: int, ahead: int) -> None:
    """Multiply float32 rows by the float32 weights of four outputs.

    Args:
        rows: Address of the rows.
        weight: Address of the first output's weights.
        sums: Address of the first row's sums, with `SUMS_STRIDE` bytes between rows.
        count: Number of rows.
        inner: Number of inputs.
        ahead: Distance from `weight` to the weights to prefetch, in bytes. 0 prefetches none.
    """
    row_bytes = inner * FLOAT_BYTES
    for row in range(0, count, MAX_ROWS):
        _multiply_float32(
            min(MAX_ROWS, count - row),
            rows + row * row_bytes,
            row_bytes,
            weight,
            row_bytes,
            sums + row * SUMS_STRIDE,
            SUMS_STRIDE,
            ahead if row == 0 else 0,  # the first group prefetches for all groups
        )
