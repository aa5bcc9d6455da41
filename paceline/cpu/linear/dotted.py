"""Multiply rows by a bfloat16 weight with AVX512_BF16 dot products.

This kernel is for processors without matrix instructions (AMX). A dot product is computed in four
float32 lanes. Each lane adds the products of these elements, in this order:

    lane 0:  1, 0,  9,  8, ...
    lane 1:  3, 2, 11, 10, ...
    lane 2:  5, 4, 13, 12, ...
    lane 3:  7, 6, 15, 14, ...

The total is (lane 0 + lane 2) + (lane 1 + lane 3). The number of rows and outputs that are computed
together does not affect this order.
"""

from __future__ import annotations

import numpy as np

from paceline.cpu.avx512_dot import (
    ALL_PARTS,
    LINE,
    MAX_BLOCKS,
    OUTPUTS,
    PARTS,
    ROWS,
    STRIDE,
    multiply_blocks,
)
from paceline.cpu.linear.call import PRODUCT_CALL, TASK, read_call, take_task, write_out
from paceline.cpu.memory import FLOAT_BYTES, HALF_BYTES, address, aligned
from paceline.cpu.row_blocks import count_blocks, even_share, pack_row, packed_row
from paceline.cpu.settings import L2_BYTES_OF_DOTTED_ROWS, OUTPUTS_AHEAD
from paceline.cpu.thread_team import TeamJob
from paceline.util.compiled import inlined

INNER, OUTER = LINE // HALF_BYTES, OUTPUTS  # the sizes of a weight are multiples of these
_HALF = OUTPUTS // 2
_multiply_group = multiply_blocks()
_multiply_four = multiply_blocks((MAX_BLOCKS + 1,), _HALF)


def _multiply(call_address: int) -> int:
    """Run tasks of a `ProductCall`; return how many this thread ran."""
    call = read_call(call_address)
    count, outer = call.count, call.outer
    first = take_task(call_address)
    if first >= outer:
        return 0
    row_bytes = call.inner * HALF_BYTES
    blocks = count_blocks(count)
    max_blocks = max(MAX_BLOCKS, L2_BYTES_OF_DOTTED_ROWS // (ROWS * row_bytes))
    packed = np.empty((blocks * ROWS * row_bytes + LINE) // FLOAT_BYTES, dtype=np.float32)
    sums = np.empty(min(blocks, max_blocks) * ROWS * TASK, dtype=np.float32)
    for row in range(blocks * ROWS):  # copies of the last row fill the last block
        source = call.rows + min(row, count - 1) * row_bytes
        pack_row(source, packed_row(aligned(packed), row, row_bytes), row_bytes)
    num_done = 0
    while first < outer:
        width = min(TASK, outer - first)
        for block in range(0, blocks, max_blocks):
            height = min(max_blocks, blocks - block)
            # Numba frees an array after its last use: read its address inside the loop.
            source = aligned(packed) + block * ROWS * row_bytes
            for output in range(first, first + width, OUTPUTS):
                is_ahead = block == 0 and output + OUTPUTS_AHEAD < outer
                _multiply_outputs(
                    source,
                    call.weight + output * row_bytes,
                    row_bytes,
                    address(sums) + (output - first) * FLOAT_BYTES,
                    height,
                    OUTPUTS_AHEAD * row_bytes if is_ahead else 0,
                )
            row = block * ROWS
            write_out(call, address(sums), row, min(height * ROWS, count - row), first, width)
        num_done += 1
        first = take_task(call_address)
    return num_done


multiply_dotted = TeamJob(_multiply, PRODUCT_CALL)


@inlined
def _multiply_outputs(
    blocks: int, weight: int, row_bytes: int, sums: int, count: int, ahead: int
) -> None:
    """Multiply all blocks of four rows by the weights of eight outputs.

    The function multiplies the blocks in groups of similar size. Each group prefetches a fraction
    of the next weights. If one group prefetched all of them, this group would wait for memory, and
    the memory would be idle during the other groups.

    Args:
        blocks: Address of the packed blocks.
        weight: Address of the first output's weights.
        row_bytes: Size of a row in bytes.
        sums: Address at which to write the sums, with `STRIDE` bytes between rows.
        count: Number of blocks.
        ahead: Distance from `weight` to the weights to prefetch, in bytes. 0 prefetches none.
    """
    if count == MAX_BLOCKS + 1:  # a single group fits into the registers with half the outputs
        parts = ALL_PARTS if ahead else 0
        _multiply_four(count, blocks, weight, row_bytes, sums, ahead, parts)
        weight, sums = weight + _HALF * row_bytes, sums + _HALF * FLOAT_BYTES
        _multiply_four(count, blocks, weight, row_bytes, sums, ahead, parts)
        return
    groups = even_share(count, MAX_BLOCKS)
    done, fetched = 0, 0 if ahead else PARTS
    while groups:
        size, last = (
            even_share(count - done, groups),
            fetched + even_share(PARTS - fetched, groups),
        )
        parts = (1 << last) - (1 << fetched)
        source, target = blocks + done * ROWS * row_bytes, sums + done * ROWS * STRIDE
        _multiply_group(size, source, weight, row_bytes, target, ahead, parts)
        done, fetched, groups = done + size, last, groups - 1
