"""Multiply rows by a packed weight, using AVX512_BF16 dot products.

The sums are bit-identical to those of `linear.dotted` with the unpacked weight. The kernel unpacks
a section of some outputs into the L1 cache and multiplies all rows by the section before it
unpacks the next one.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from paceline.cpu.avx512_dot import CHUNK, LINE
from paceline.cpu.linear.call import (
    PRODUCT_CALL,
    SUMS_STRIDE,
    TASK,
    ProductCall,
    read_call,
    take_task,
    write_out,
)
from paceline.cpu.linear.unpack_call import PART_BYTES, UNPACK_CALL, describe
from paceline.cpu.memory import FLOAT_BYTES, HALF_BYTES, address, aligned, clear
from paceline.cpu.packed.quads import QUADS_OF_LINE, multiply_quads, store_totals
from paceline.cpu.packed.unpacking import QUAD
from paceline.cpu.row_blocks import even_share
from paceline.cpu.settings import PACKED_OUTPUTS, PARTS_PER_SECTION
from paceline.cpu.thread_team import TeamJob
from paceline.cpu.thread_team import call as call_function
from paceline.util.compiled import inlined

_QUADS = PACKED_OUTPUTS // QUAD
_SECTION = PARTS_PER_SECTION * PART_BYTES  # bytes of an output's numbers in a section
_STRIDE = _QUADS * LINE  # bytes from the sums of one row to the next
_FEW, _MANY = 3, 6  # rows with all quads of a group, and with half of them
_multiply_all = multiply_quads(tuple(range(1, _FEW + 1)), _QUADS)
_multiply_half = multiply_quads(tuple(range(1, _MANY + 1)), _QUADS // 2)


def _multiply(call_address: int) -> int:
    """Run tasks of a packed weight's `ProductCall` at an address; return their number."""
    call = read_call(call_address)
    count, outer = call.count, call.outer
    first = take_task(call_address)
    if first >= outer:
        return 0
    memory = np.empty(
        (count * _STRIDE + PACKED_OUTPUTS * _SECTION + LINE) // FLOAT_BYTES, dtype=np.float32
    )
    totals = np.empty(count * TASK, dtype=np.float32)
    unpacking = np.empty(1, dtype=UNPACK_CALL)
    describe(call, unpacking[0])
    num_done = 0
    while first < outer:
        width = min(TASK, outer - first)
        # Numba frees an array after its last use: read its address inside the loop.
        scratch = aligned(memory)
        for output in range(first, first + width, PACKED_OUTPUTS):
            quads = min(PACKED_OUTPUTS, outer - output) // QUAD
            _multiply_group(call, unpacking[0], address(unpacking), scratch, output, quads)
            target = address(totals) + (output - first) * FLOAT_BYTES
            for row in range(count):
                for quad in range(0, _QUADS, QUADS_OF_LINE):
                    store_totals(
                        scratch + row * _STRIDE + quad * LINE,
                        target + row * SUMS_STRIDE + quad * QUAD * FLOAT_BYTES,
                    )
        write_out(call, address(totals), 0, count, first, width)
        num_done += 1
        first = take_task(call_address)
    return num_done


multiply_packed = TeamJob(_multiply, PRODUCT_CALL)


@inlined
def _multiply_group(
    call: ProductCall,
    unpacking: Any,
    unpacking_address: int,
    sums: int,
    output: int,
    quads: int,
) -> None:
    """Multiply all rows by a group of outputs, and store the sums."""
    count, row_bytes = call.count, call.inner * HALF_BYTES
    weight = sums + count * _STRIDE
    clear(sums, count * _STRIDE)
    unpacking.first, unpacking.count, unpacking.target = output, quads * QUAD, weight
    is_ahead = output + 2 * PACKED_OUTPUTS <= call.outer
    unpacking.ahead = PACKED_OUTPUTS * call.blocks_row_bytes if is_ahead else 0
    unpacking.source = call.weight
    for start in range(0, row_bytes, _SECTION):
        size = min(_SECTION, row_bytes - start)
        unpacking.num_parts = size // PART_BYTES
        call_function(call.unpack, unpacking_address)
        rows, chunks = call.rows + start, size // CHUNK
        _multiply_rows(rows, row_bytes, weight, chunks, sums, count, quads)
        unpacking.source += call.section_bytes


@inlined
def _multiply_rows(
    rows: int, row_bytes: int, weight: int, chunks: int, sums: int, count: int, quads: int
) -> None:
    """Multiply one section of every row, in groups of rows of similar size."""
    if count <= _FEW:
        _multiply_all(count, rows, row_bytes, weight, chunks, sums, _STRIDE)
        return
    half = _QUADS // 2
    groups, done = even_share(count, _MANY), 0
    while groups:
        size = even_share(count - done, groups)
        source, target = rows + done * row_bytes, sums + done * _STRIDE
        _multiply_half(size, source, row_bytes, weight, chunks, target, _STRIDE)
        if quads > half:
            _multiply_half(
                size,
                source,
                row_bytes,
                weight + half * chunks * LINE,
                chunks,
                target + half * LINE,
                _STRIDE,
            )
        done, groups = done + size, groups - 1
