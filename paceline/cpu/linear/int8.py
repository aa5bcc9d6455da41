"""Multiply rows by an int8 weight with AVX512_VNNI, only for draft models.

The weight is half as large as a bfloat16 weight, and the product needs half as many instructions:

    out[row, output] = scale[row] * scale[output] * sum over k of rows[row, k] * weight[output, k]
        + bias[output]

Each row, and each output's weights, are scaled by their largest magnitude and rounded to integers
from -127 to 127. Sums are exact, so a row's result depends on that row only. Results differ from
those of the original weight, so only draft models may use this kernel.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from paceline.cpu import avx512_dot, simd_f32x8
from paceline.cpu.avx512_dot import (
    ALL_PARTS,
    CHUNK,
    INT8,
    LINE,
    MAX_BLOCKS,
    OUTPUTS,
    ROWS,
    STRIDE,
    multiply_blocks,
)
from paceline.cpu.linear.call import (
    PRODUCT_CALL,
    TASK,
    ProductCall,
    read_call,
    run_product,
    take_task,
)
from paceline.cpu.memory import BFLOAT16, FLOAT_BYTES, HALF_BYTES, address, aligned, load_lanes
from paceline.cpu.row_blocks import count_blocks, even_share, packed_row
from paceline.cpu.settings import MAX_INT8_BLOCKS, OUTPUTS_AHEAD
from paceline.cpu.thread_team import TeamJob
from paceline.util.compiled import inlined

_MAX_INTEGER = 127.0
_MIN_ROW_MAXIMUM = 1e-30  # keeps the scale of a row of zeros above zero
_multiply_group = multiply_blocks(kind=INT8)


@dataclass(frozen=True, slots=True)
class Int8Weight:
    """A quantised weight, with the factors that undo the quantisation.

    Attributes:
        numbers: Quantised weight, int8 [outer, inner].
        factors: Float32 [3, outer]. The first row holds the scales, and the last the bias. The
            second holds the amount that `avx512_dot.ZERO` adds to each sum, because rows are stored
            as unsigned integers.
    """

    numbers: Tensor
    factors: Tensor

    @staticmethod
    def of(weight: Tensor, bias: Tensor | None) -> Int8Weight:
        """Quantise a weight [outer, inner] with a bias [outer] or None."""
        largest = weight.detach().float().abs().amax(dim=1)
        scales = largest.clamp(min=_MIN_ROW_MAXIMUM) / _MAX_INTEGER
        numbers = (weight.detach().float() / scales[:, None]).round().to(torch.int8)
        offsets = avx512_dot.ZERO * numbers.sum(dim=1, dtype=torch.int32).float()
        factors = torch.stack(
            (scales, offsets, torch.zeros_like(scales) if bias is None else bias.detach().float())
        )
        return Int8Weight(numbers.contiguous(), factors)

    def product(self, rows: Tensor) -> Tensor:
        """Multiply bfloat16 rows [..., inner] by the weight; return [..., outer]."""
        outer, inner = self.numbers.shape
        rows = rows.contiguous()
        count = rows.numel() // inner
        out = torch.empty(*rows.shape[:-1], outer, dtype=torch.bfloat16)
        addresses = (
            rows.data_ptr(),
            self.numbers.data_ptr(),
            self.factors.data_ptr(),
            out.data_ptr(),
        )
        run_product(multiply_int8, addresses, (BFLOAT16, BFLOAT16), (count, inner, outer))
        return out


def suits(weight: Tensor) -> bool:
    """Return whether a weight can be quantised and multiplied on this processor."""
    fits = weight.shape[1] % LINE == 0 and weight.shape[0] % OUTPUTS == 0
    return (
        avx512_dot.available(INT8)
        and weight.device.type == "cpu"
        and weight.dtype == torch.bfloat16
        and fits
    )


def _multiply(call_address: int) -> int:
    """Run a product's tasks until none is left; return how many this thread ran."""
    call = read_call(call_address)
    count, inner, outer = call.count, call.inner, call.outer
    first = take_task(call_address)
    if first >= outer:
        return 0
    blocks = count_blocks(count)
    packed = np.empty((blocks * ROWS * inner + LINE) // FLOAT_BYTES, dtype=np.float32)
    scales = np.empty(count, dtype=np.float32)
    sums = np.empty(min(blocks, MAX_INT8_BLOCKS) * ROWS * TASK, dtype=np.float32)
    _quantise_rows(call.rows, aligned(packed), scales, count, inner)
    num_done = 0
    while first < outer:
        width = min(TASK, outer - first)
        for block in range(0, blocks, MAX_INT8_BLOCKS):
            height = min(MAX_INT8_BLOCKS, blocks - block)
            # Numba frees an array after its last use: read its address inside the loop.
            source = aligned(packed) + block * ROWS * inner
            for output in range(first, first + width, OUTPUTS):
                is_ahead = block == 0 and output + OUTPUTS_AHEAD < outer
                weight, target = (
                    call.weight + output * inner,
                    address(sums) + (output - first) * FLOAT_BYTES,
                )
                ahead = OUTPUTS_AHEAD * inner if is_ahead else 0
                _multiply_outputs(source, weight, inner, target, height, ahead)
            for row in range(block * ROWS, min((block + height) * ROWS, count)):
                row_sums = address(sums) + (row - block * ROWS) * STRIDE
                _write_row(call, row_sums, row, scales[row], first, width)
        num_done += 1
        first = take_task(call_address)
    return num_done


multiply_int8 = TeamJob(_multiply, PRODUCT_CALL)


@inlined
def _quantise_rows(
    rows: int, packed: int, scales: NDArray[np.float32], count: int, inner: int
) -> None:
    """Pack bfloat16 rows as int8 blocks, and store the scale of each row.

    The last block is padded with the last row.
    """
    zeros = simd_f32x8.splat(np.float32(0.0))
    for row in range(count_blocks(count) * ROWS):
        source = rows + min(row, count - 1) * inner * HALF_BYTES
        target = packed_row(packed, row, inner)
        largest = zeros
        for i in range(0, inner, simd_f32x8.WIDTH):
            vector = load_lanes(BFLOAT16, source + i * HALF_BYTES)
            largest = simd_f32x8.larger(largest, simd_f32x8.with_sign(vector, zeros))
        scale = max(simd_f32x8.largest(largest), np.float32(_MIN_ROW_MAXIMUM)) / np.float32(
            _MAX_INTEGER
        )
        if row < count:
            scales[row] = scale
        for i in range(0, inner, CHUNK):
            avx512_dot.quantise_chunk(
                source + i * HALF_BYTES, target + i * ROWS, np.float32(1.0) / scale
            )


@inlined
def _multiply_outputs(
    blocks: int, weight: int, row_bytes: int, sums: int, count: int, ahead: int
) -> None:
    """Multiply all blocks of four rows by the weights of eight outputs.

    The blocks are multiplied in groups of similar size. The first group prefetches the next
    weights for all groups.
    """
    groups = even_share(count, MAX_BLOCKS)
    done, parts = 0, ALL_PARTS if ahead else 0
    while groups:
        size = even_share(count - done, groups)
        source, target = blocks + done * ROWS * row_bytes, sums + done * ROWS * STRIDE
        _multiply_group(size, source, weight, row_bytes, target, ahead, parts)
        done, groups, parts = done + size, groups - 1, 0


@inlined
def _write_row(call: ProductCall, sums: int, row: int, scale: Any, first: int, width: int) -> None:
    """Scale a row's sums, add the bias, and write the outputs starting at `first`."""
    stride = call.outer * FLOAT_BYTES  # from one factor of an output to the next
    for output in range(0, width, simd_f32x8.WIDTH):
        factors = call.bias + (first + output) * FLOAT_BYTES
        total = simd_f32x8.subtract(
            simd_f32x8.load(sums + output * FLOAT_BYTES), simd_f32x8.load(factors + stride)
        )
        total = simd_f32x8.multiply(
            simd_f32x8.multiply(total, simd_f32x8.load(factors)), simd_f32x8.splat(scale)
        )
        simd_f32x8.store_bfloat16(
            call.out + (row * call.outer + first + output) * HALF_BYTES,
            simd_f32x8.add(total, simd_f32x8.load(factors + 2 * stride)),
        )
