"""Multiply rows by a packed weight with AVX512_BF16 dot products.

The sums are bit-identical to those of `linear.dotted` with the unpacked weight. The kernel uses one
of two methods:

- With few rows, the kernel unpacks one line (64 bytes) of weights to a register. It multiplies all
  rows by this line before it unpacks the next one (`few_rows`).
- With more rows, the kernel unpacks one section of the weight to the L1 cache. It multiplies all
  rows by this section before it unpacks the next one. A section contains the weights of a few
  outputs for a range of inputs.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from paceline.cpu.avx512_dot import CHUNK, LINE
from paceline.cpu.linear.call import (
    PRODUCT_CALL,
    TASK,
    ProductCall,
    read_call,
    take_task,
)
from paceline.cpu.linear.unpack_call import PART, PART_BYTES, UNPACK_CALL, describe
from paceline.cpu.memory import FLOAT_BYTES, HALF_BYTES, address, aligned, clear
from paceline.cpu.packed.few_rows import FEW_ROWS_CALL
from paceline.cpu.packed.quad_lines import QUAD
from paceline.cpu.packed.quads import WRITTEN, multiply_quads, write_row
from paceline.cpu.row_blocks import even_share
from paceline.cpu.settings import MAX_FEW_ROWS, UNPACKED_GROUP
from paceline.cpu.thread_team import TeamJob
from paceline.cpu.thread_team import call as call_function
from paceline.util.compiled import inlined, subroutine

_MAX_ROWS = 6  # maximum number of rows that are multiplied together
_STRIDE = UNPACKED_GROUP * CHUNK  # bytes between the sums of consecutive rows
_multiply_quads = multiply_quads(tuple(range(1, _MAX_ROWS + 1)), UNPACKED_GROUP // QUAD)


def _multiply(call_address: int) -> int:
    """Run tasks of a `ProductCall`; return how many this thread ran."""
    call = read_call(call_address)
    if call.count <= MAX_FEW_ROWS:
        return _multiply_few(call_address)
    count, outer = call.count, call.outer
    first = take_task(call_address)
    if first >= outer:
        return 0
    section = UNPACKED_GROUP * call.section_parts * PART_BYTES
    memory = np.empty((count * _STRIDE + section + LINE) // FLOAT_BYTES, dtype=np.float32)
    unpacking = np.empty(1, dtype=UNPACK_CALL)
    describe(call, unpacking[0])
    unpacking[0].line_step = UNPACKED_GROUP * CHUNK
    num_done = 0
    while first < outer:
        width = min(TASK, outer - first)
        # Numba frees an array after its last use: read its address inside the loop.
        scratch = aligned(memory)
        for output in range(first, first + width, UNPACKED_GROUP):
            _multiply_group(call, unpacking[0], address(unpacking), scratch, output)
            _write_group(call, scratch, output, min(UNPACKED_GROUP, outer - output), _STRIDE)
        num_done += 1
        first = take_task(call_address)
    return num_done


multiply_packed = TeamJob(_multiply, PRODUCT_CALL)


@subroutine
def _multiply_few(call_address: int) -> int:
    """Run tasks of a product with few rows; return how many this thread ran."""
    call = read_call(call_address)
    outer, first = call.outer, take_task(call_address)
    if first >= outer:
        return 0
    stride = TASK // QUAD * LINE
    memory = np.empty((call.count * stride + LINE) // FLOAT_BYTES, dtype=np.float32)
    calls = np.empty(1, dtype=FEW_ROWS_CALL)
    few = calls[0]
    few.rows, few.row_bytes, few.count = call.rows, call.inner * HALF_BYTES, call.count
    few.source, few.blocks_row_bytes, few.order = call.weight, call.blocks_row_bytes, call.order
    few.num_parts, few.sums_stride = call.inner // PART, stride
    few.outer, few.following = outer, call.following
    num_done = 0
    while first < outer:
        width = min(TASK, outer - first)
        # Numba frees an array after its last use: read its address inside the loop.
        few.sums, few.first, few.width = aligned(memory), first, width
        call_function(call.multiply_few, address(calls))
        _write_group(call, few.sums, first, width, stride)
        num_done += 1
        first = take_task(call_address)
    return num_done


@inlined
def _write_group(call: ProductCall, sums: int, output: int, width: int, stride: int) -> None:
    """Add the partial sums of a group of outputs, and write the results for all rows.

    The function also adds the bias.

    Args:
        call: Arguments of the matrix product.
        sums: Address of the group's partial sums.
        output: Index of the group's first output.
        width: Number of outputs in the group.
        stride: Distance between the partial sums of consecutive rows, in bytes.
    """
    for row in range(call.count):
        for done in range(0, width, WRITTEN):
            column = output + done
            write_row(
                sums + row * stride + done * CHUNK,
                call.bias + column * FLOAT_BYTES if call.bias else 0,
                call.out + (row * call.outer + column) * HALF_BYTES,
                min(WRITTEN, width - done),
            )


@inlined
def _multiply_group(
    call: ProductCall, unpacking: Any, unpacking_address: int, sums: int, output: int
) -> None:
    """Unpack the weights of a group of outputs, and multiply all rows by the weights.

    Args:
        call: Arguments of the matrix product.
        unpacking: `UnpackCall` that `describe` has initialised.
        unpacking_address: Address of `unpacking`.
        sums: Address of memory for the partial sums, followed by a section of unpacked weights.
        output: Index of the group's first output.
    """
    count, row_bytes = call.count, call.inner * HALF_BYTES
    weight = sums + count * _STRIDE
    clear(sums, count * _STRIDE)
    num_parts, num_outputs = call.inner // PART, min(UNPACKED_GROUP, call.outer - output)
    unpacking.first, unpacking.count, unpacking.target = output, num_outputs, weight
    is_ahead = output + 2 * UNPACKED_GROUP <= call.outer
    unpacking.ahead = UNPACKED_GROUP * call.blocks_row_bytes if is_ahead else 0
    for part in range(0, num_parts, call.section_parts):
        unpacking.num_parts = min(call.section_parts, num_parts - part)
        unpacking.source = call.weight + part * call.blocks_row_bytes // num_parts
        call_function(call.unpack, unpacking_address)
        rows, chunks = call.rows + part * PART_BYTES, unpacking.num_parts * PART_BYTES // CHUNK
        _multiply_rows(rows, row_bytes, weight, chunks, sums, count)


@inlined
def _multiply_rows(
    rows: int, row_bytes: int, weight: int, chunks: int, sums: int, count: int
) -> None:
    """Multiply all rows by an unpacked section, one group of rows after another.

    All groups have a similar number of rows.

    Args:
        rows: Address of the rows, at the section's first input.
        row_bytes: Distance between consecutive rows, in bytes.
        weight: Address of the section.
        chunks: Number of chunks (eight weights each) per output in the section.
        sums: Address of the partial sums, to which the products are added.
        count: Number of rows.
    """
    groups, done = even_share(count, _MAX_ROWS), 0
    while groups:
        size = even_share(count - done, groups)
        source, target = rows + done * row_bytes, sums + done * _STRIDE
        _multiply_quads(size, source, row_bytes, weight, chunks, target, _STRIDE)
        done, groups = done + size, groups - 1
