"""Multiply rows by a packed weight with AVX512_BF16 dot products.

The sums are bit-identical to those of `linear.dotted` with the unpacked weight. The kernel unpacks
a section of a few outputs' weights into the L1 cache. It multiplies all rows by this section before
it unpacks the next one.
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
from paceline.cpu.packed.quad_lines import QUAD
from paceline.cpu.packed.quads import WRITTEN, multiply_quads, write_row
from paceline.cpu.row_blocks import even_share
from paceline.cpu.settings import NARROW_GROUP, WIDE_GROUP
from paceline.cpu.thread_team import TeamJob
from paceline.cpu.thread_team import call as call_function
from paceline.util.compiled import inlined

_FEW, _MANY = 3, 6  # rows that are multiplied together with wide and with narrow groups
_multiply_wide = multiply_quads(tuple(range(1, _FEW + 1)), WIDE_GROUP // QUAD)
_multiply_narrow = multiply_quads(tuple(range(1, _MANY + 1)), NARROW_GROUP // QUAD)


def _multiply(call_address: int) -> int:
    """Run a product's tasks until none is left; return how many this thread ran."""
    call = read_call(call_address)
    count, outer = call.count, call.outer
    first = take_task(call_address)
    if first >= outer:
        return 0
    group = group_size(count)
    stride = group * CHUNK  # bytes from the sums of one row to the next
    section = group * call.section_parts * PART_BYTES
    memory = np.empty((count * stride + section + LINE) // FLOAT_BYTES, dtype=np.float32)
    unpacking = np.empty(1, dtype=UNPACK_CALL)
    describe(call, unpacking[0])
    unpacking[0].line_step = group * CHUNK
    num_done = 0
    while first < outer:
        width = min(TASK, outer - first)
        # Numba frees an array after its last use: read its address inside the loop.
        scratch = aligned(memory)
        for output in range(first, first + width, group):
            _multiply_group(call, unpacking[0], address(unpacking), scratch, output, group)
            _write_group(call, scratch, output, min(group, outer - output), stride)
        num_done += 1
        first = take_task(call_address)
    return num_done


multiply_packed = TeamJob(_multiply, PRODUCT_CALL)


@inlined
def _write_group(call: ProductCall, sums: int, output: int, width: int, stride: int) -> None:
    """Write the results of a group of outputs for all rows."""
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
def group_size(count: int) -> int:
    """Return the number of outputs whose weights are unpacked together."""
    return WIDE_GROUP if count <= _FEW else NARROW_GROUP


@inlined
def _multiply_group(
    call: ProductCall, unpacking: Any, unpacking_address: int, sums: int, output: int, group: int
) -> None:
    """Multiply all rows by the weights of one group of outputs, and store the sums."""
    count, stride, row_bytes = call.count, group * CHUNK, call.inner * HALF_BYTES
    weight = sums + count * stride
    clear(sums, count * stride)
    num_parts, num_outputs = call.inner // PART, min(group, call.outer - output)
    unpacking.first, unpacking.count, unpacking.target = output, num_outputs, weight
    is_ahead = output + 2 * group <= call.outer
    unpacking.ahead = group * call.blocks_row_bytes if is_ahead else 0
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
    """Multiply all rows by the section of the weights that was unpacked last.

    The rows are multiplied in groups of similar size.
    """
    if count <= _FEW:
        _multiply_wide(count, rows, row_bytes, weight, chunks, sums, WIDE_GROUP * CHUNK)
        return
    groups, done, stride = even_share(count, _MANY), 0, NARROW_GROUP * CHUNK
    while groups:
        size = even_share(count - done, groups)
        source, target = rows + done * row_bytes, sums + done * stride
        _multiply_narrow(size, source, row_bytes, weight, chunks, target, stride)
        done, groups = done + size, groups - 1
