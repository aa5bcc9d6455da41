"""Multiply rows by a weight stored as [inputs, outputs], as in some MoE experts.

A task computes a few hundred outputs. It reads the weights of a block of inputs at a time, so that
consecutive reads stay within a few pages of memory.

In bfloat16 on processors with AVX512_BF16, `input_pairs` determines the order of a sum. Otherwise,
the kernel adds the products with one float32 fused multiply-add per input, in the order of the
inputs. The number of rows and outputs that are computed together does not affect the result.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from paceline.core.tree import IntArray
from paceline.cpu import avx512_dot
from paceline.cpu.linear.call import (
    PRODUCT_CALL,
    SUMS_STRIDE,
    TASK,
    ProductCall,
    read_call,
    take_task,
    write_out,
)
from paceline.cpu.linear.input_pairs import add_pairs, interleave
from paceline.cpu.memory import BFLOAT16, FLOAT32, FLOAT_BYTES, HALF_BYTES, address, clear, load_row
from paceline.cpu.settings import INPUTS_PER_BLOCK, ROWS_PER_PAIR, TASKS_PER_BLOCK
from paceline.cpu.softmax_weighted_sum import QUERIES, STEP, VECTORS, add_weighted
from paceline.cpu.thread_team import TeamJob
from paceline.util.compiled import inlined

OUTER = STEP // FLOAT_BYTES  # the number of outputs is a multiple of this number
_GROUP = VECTORS * OUTER  # number of outputs whose sums stay in registers
_AVAILABLE = avx512_dot.available()
_add_group, _add_vector = add_weighted(VECTORS), add_weighted(1)
_add_pair_group, _add_pair_vector = add_pairs(VECTORS, False), add_pairs(1, False)
_interleave, _add_interleaved = interleave(VECTORS), add_pairs(VECTORS, True)


class _ProductRows(NamedTuple):
    """The input rows of a matrix product, and the memory for processing them.

    Attributes:
        source: Address of the first row.
        number_bytes: Size of an input in bytes.
        most: Maximum number of rows per call of `_add`.
        addresses: Addresses of the inputs that `_add` multiplies, one address per row.
        in_pairs: Whether the kernel multiplies two inputs of a row at a time.
        weights: Memory for the interleaved weights of a block of inputs.
    """

    source: int
    number_bytes: int
    most: int
    addresses: IntArray
    in_pairs: bool
    weights: NDArray[np.uint16]


def _multiply(call_address: int) -> int:
    """Run tasks of a `ProductCall`; return how many this thread ran."""
    call = read_call(call_address)
    count, inner, outer = call.count, call.inner, call.outer
    first = take_task(call_address) * TASKS_PER_BLOCK
    if first >= outer:
        return 0
    in_pairs = _AVAILABLE and call.kind == BFLOAT16
    number_bytes, most = (HALF_BYTES, ROWS_PER_PAIR) if in_pairs else (FLOAT_BYTES, QUERIES)
    is_wide = not in_pairs and call.kind != FLOAT32
    wide = np.empty(count * inner if is_wide else 0, dtype=np.float32)
    if is_wide:
        load_row(call.kind, call.rows, address(wide), count * inner)
    sums = np.empty(TASKS_PER_BLOCK * count * TASK, dtype=np.float32)
    addresses = np.empty(max(QUERIES, ROWS_PER_PAIR), dtype=np.int64)
    weights = np.empty(INPUTS_PER_BLOCK * _GROUP if in_pairs else 0, dtype=np.uint16)
    num_done = 0
    while first < outer:
        width = min(TASKS_PER_BLOCK * TASK, outer - first)
        clear(address(sums), TASKS_PER_BLOCK * count * SUMS_STRIDE)
        # Numba frees an array after its last use: read its address inside the loop.
        source = address(wide) if is_wide else call.rows
        rows = _ProductRows(source, number_bytes, most, addresses, in_pairs, weights)
        for start in range(0, inner, INPUTS_PER_BLOCK):
            size = min(INPUTS_PER_BLOCK, inner - start)
            _add_block(call, rows, start, size, first, width, address(sums))
        for output in range(0, width, TASK):
            total = address(sums) + output * count * FLOAT_BYTES
            write_out(call, total, 0, count, first + output, min(TASK, width - output))
        num_done += 1
        first = take_task(call_address) * TASKS_PER_BLOCK
    return num_done


multiply_transposed = TeamJob(_multiply, PRODUCT_CALL)


@inlined
def _add_block(
    call: ProductCall, rows: _ProductRows, start: int, size: int, first: int, width: int, sums: int
) -> None:
    """Multiply a block of inputs by their weights, and add the products to the sums.

    Args:
        call: Arguments of the matrix product.
        rows: Rows of the product.
        start: Index of the block's first input.
        size: Number of inputs in the block.
        first: Index of the first output.
        width: Number of outputs.
        sums: Address of the sums, float32 [groups, rows, TASK]. A group is `TASK` outputs.
    """
    weight_bytes, output = FLOAT_BYTES if call.kind == FLOAT32 else HALF_BYTES, 0
    while output < width:
        weight = call.weight + (start * call.outer + first + output) * weight_bytes
        task = output // TASK * TASK
        vectors = VECTORS if output - task + _GROUP <= min(TASK, width - task) else 1
        target = sums + (task * call.count + output - task) * FLOAT_BYTES
        interleaved = rows.in_pairs and vectors > 1 and call.count > rows.most
        if interleaved:
            source, weight = weight, address(rows.weights)
            _interleave(source, call.outer * HALF_BYTES, size // 2, weight)
        # All rows use the same few weights, which therefore stay in the L1 cache.
        for row in range(0, call.count, rows.most):
            num_rows = min(rows.most, call.count - row)
            for index in range(num_rows):
                number = (row + index) * call.inner + start
                rows.addresses[index] = rows.source + number * rows.number_bytes
            if interleaved:
                inputs = address(rows.addresses)
                _add_interleaved(num_rows, inputs, weight, 0, size // 2, target, SUMS_STRIDE)
            else:
                _add(call, rows, num_rows, weight, size, vectors, target)
            target += num_rows * SUMS_STRIDE
        output += vectors * OUTER


@inlined
def _add(
    call: ProductCall,
    rows: _ProductRows,
    num_rows: int,
    weight: int,
    size: int,
    vectors: int,
    sums: int,
) -> None:
    """Multiply inputs of a few rows by their weights, and add the products to sums.

    Args:
        call: Arguments of the matrix product.
        rows: Rows of the product. `rows.addresses` contains the addresses of the inputs.
        num_rows: Number of rows.
        weight: Address of the first input's weights.
        size: Number of inputs per row.
        vectors: Number of vectors of sums per row: 1 or `VECTORS`.
        sums: Address of the first row's sums, with `SUMS_STRIDE` bytes between rows.
    """
    inputs, stride = address(rows.addresses), call.outer * HALF_BYTES
    if rows.in_pairs:
        if vectors == 1:
            _add_pair_vector(num_rows, inputs, weight, stride, size // 2, sums, SUMS_STRIDE)
        else:
            _add_pair_group(num_rows, inputs, weight, stride, size // 2, sums, SUMS_STRIDE)
        return
    halves = int(call.kind != FLOAT32)
    stride *= 2 - halves
    if vectors == 1:
        _add_vector(num_rows, halves, inputs, weight, stride, size, sums, SUMS_STRIDE)
    else:
        _add_group(num_rows, halves, inputs, weight, stride, size, sums, SUMS_STRIDE)
