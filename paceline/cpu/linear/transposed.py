"""Multiply rows by a weight stored as [inner, outer], as in some experts.

A task computes the sums of a few hundred outputs. It reads a block of the weight's rows at a time,
so that consecutive reads stay within a few pages of memory. Every sum takes one fused
multiply-add per input, in the order of the inputs, in float32. The result does not depend on how
many rows and outputs are computed together.
"""

from __future__ import annotations

import numpy as np

from paceline.cpu.linear.call import (
    PRODUCT_CALL,
    SUMS_STRIDE,
    TASK,
    ProductCall,
    read_call,
    take_task,
    write_out,
)
from paceline.cpu.memory import FLOAT32, FLOAT_BYTES, HALF_BYTES, address, clear, load_row
from paceline.cpu.settings import INPUTS_PER_BLOCK, TASKS_PER_BLOCK
from paceline.cpu.softmax_weighted_sum import QUERIES, STEP, VECTORS, add_weighted
from paceline.cpu.thread_team import TeamJob
from paceline.util.compiled import inlined

OUTER = STEP // FLOAT_BYTES  # the number of outputs is a multiple of this
_GROUP = VECTORS * OUTER  # outputs whose sums stay in registers
_add_group, _add_vector = add_weighted(VECTORS), add_weighted(1)


def _multiply(call_address: int) -> int:
    """Run a product's tasks until none is left; return how many this thread ran."""
    call = read_call(call_address)
    count, inner, outer = call.count, call.inner, call.outer
    number_bytes = FLOAT_BYTES if call.kind == FLOAT32 else HALF_BYTES
    first = take_task(call_address) * TASKS_PER_BLOCK
    if first >= outer:
        return 0
    wide = np.empty(0 if call.kind == FLOAT32 else count * inner, dtype=np.float32)
    if call.kind != FLOAT32:
        load_row(call.kind, call.rows, address(wide), count * inner)
    sums = np.empty(TASKS_PER_BLOCK * count * TASK, dtype=np.float32)
    rows = np.empty(QUERIES, dtype=np.int64)
    num_done = 0
    while first < outer:
        width = min(TASKS_PER_BLOCK * TASK, outer - first)
        clear(address(sums), TASKS_PER_BLOCK * count * SUMS_STRIDE)
        for start in range(0, inner, INPUTS_PER_BLOCK):
            size = min(INPUTS_PER_BLOCK, inner - start)
            weight = call.weight + (start * outer + first) * number_bytes
            # Numba frees an array after its last use: read its address inside the loop.
            source = call.rows if call.kind == FLOAT32 else address(wide)
            for row in range(0, count, QUERIES):
                queries = min(QUERIES, count - row)
                for query in range(queries):
                    rows[query] = source + ((row + query) * inner + start) * FLOAT_BYTES
                target = address(sums) + row * SUMS_STRIDE
                _add_block(call, queries, address(rows), weight, size, width, target)
        for output in range(0, width, TASK):
            total = address(sums) + output * count * FLOAT_BYTES
            write_out(call, total, 0, count, first + output, min(TASK, width - output))
        num_done += 1
        first = take_task(call_address) * TASKS_PER_BLOCK
    return num_done


multiply_transposed = TeamJob(_multiply, PRODUCT_CALL)


@inlined
def _add_block(
    call: ProductCall, queries: int, rows: int, weight: int, size: int, width: int, sums: int
) -> None:
    """Add the products of `size` inputs and their weights to the sums of each row.

    Args:
        call: Product to compute.
        queries: Number of rows.
        rows: Address of an array that holds the address of each row's inputs.
        weight: Address of the first weight.
        size: Number of inputs.
        width: Number of outputs.
        sums: Address of the first row's sums. Each row has `TASK` sums, and the rows are
            contiguous.
    """
    number_bytes = FLOAT_BYTES if call.kind == FLOAT32 else HALF_BYTES
    halves, stride = int(call.kind != FLOAT32), call.outer * number_bytes
    output = 0
    while output < width:
        source, target = (
            weight + output * number_bytes,
            sums + (output // TASK * call.count * TASK + output % TASK) * FLOAT_BYTES,
        )
        if output % TASK + _GROUP <= min(TASK, width - output // TASK * TASK):
            _add_group(queries, halves, rows, source, stride, size, target, SUMS_STRIDE)
            output += _GROUP
        else:
            _add_vector(queries, halves, rows, source, stride, size, target, SUMS_STRIDE)
            output += OUTER
