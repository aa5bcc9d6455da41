"""Products with a weight of small integers, for drafts: half the bytes of bfloat16, and half the
instructions (AVX512_VNNI).

    out[row, output] = scale[row] * scale[output] * sum over k of numbers[row, k] * numbers[output,
    k] + bias[output]

Rows and the outputs of a weight are rounded to integers from -127 to 127, each by its own largest
number. Sums are exact, so that a row's numbers depend on that row alone. They are not the numbers
of the weight as it was: only what guesses may use them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numba
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from paceline.cpu import avx512_dot, simd_f32x8
from paceline.cpu.attention.tiles import BFLOAT16, FLOAT, address, aligned, load_lanes
from paceline.cpu.linear.kernel import PRODUCT, TASK, helpers_for, take_task
from paceline.cpu.thread_team import TeamJob
from paceline.util.compiled import as_pointer, inlined

_LARGEST = 127.0  # integer
_TINY = 1e-30  # in the place of a scale of zero
_HALF = FLOAT // 2
_BLOCKS = 1 << 5  # of rows that fill the nearest caches

_one, _two, _three = (
    avx512_dot.multiply_blocks(count, kind=avx512_dot.INT8) for count in (1, 2, 3)
)


@dataclass(frozen=True, slots=True)
class Int8Weight:
    """A weight in integers.

    Attributes:
        numbers: int8 [outer, inner]. factors: float32 [3, outer]: scales, what `avx512_dot.ZERO` in
            every place of a row adds to the sums, and the bias.
    """

    numbers: Tensor
    factors: Tensor

    @staticmethod
    def of(weight: Tensor, bias: Tensor | None) -> Int8Weight:
        """Return a weight [outer, inner] and a bias [outer] in integers."""
        scales = weight.detach().float().abs().amax(dim=1).clamp(min=_TINY) / _LARGEST
        numbers = (weight.detach().float() / scales[:, None]).round().to(torch.int8)
        added = avx512_dot.ZERO * numbers.sum(dim=1, dtype=torch.int32).float()
        factors = torch.stack(
            (scales, added, torch.zeros_like(scales) if bias is None else bias.detach().float())
        )
        return Int8Weight(numbers.contiguous(), factors)

    def product(self, rows: Tensor) -> Tensor:
        """Return rows [..., inner], in bfloat16, times the weight, [..., outer]."""
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
        values = (*addresses, BFLOAT16, BFLOAT16, count, inner, outer, 0)
        multiply_int8.run(values, helpers_for(count * inner * outer), outer <= TASK)
        return out


def suits(weight: Tensor) -> bool:
    """Whether there can be integers in the place of a weight on this processor."""
    fits = weight.shape[1] % avx512_dot.LINE == 0 and weight.shape[0] % avx512_dot.OUTPUTS == 0
    return (
        avx512_dot.available(avx512_dot.INT8)
        and weight.device.type == "cpu"
        and weight.dtype == torch.bfloat16
        and fits
    )


def _multiply_all(place: int) -> int:
    """Multiply until no output is left. `place`: where the `Product` lies, its `bias` being the
    factors.
    """
    product = numba.carray(as_pointer(place), 1, PRODUCT)[0]
    count, inner, outer = product.count, product.inner, product.outer
    first = take_task(place)
    if first >= outer:
        return 0
    blocks = (count + avx512_dot.ROWS - 1) // avx512_dot.ROWS
    packed = np.empty(
        (blocks * avx512_dot.ROWS * inner + avx512_dot.LINE) // FLOAT, dtype=np.float32
    )
    scales = np.empty(count, dtype=np.float32)
    sums = np.empty(min(blocks, _BLOCKS) * avx512_dot.ROWS * TASK, dtype=np.float32)
    _pack(product.rows, aligned(packed), scales, count, inner)
    done = 0
    while first < outer:
        width = min(TASK, outer - first)
        for block in range(0, blocks, _BLOCKS):
            some = min(_BLOCKS, blocks - block)
            # here, since an array lives until its last use
            source = aligned(packed) + block * avx512_dot.ROWS * inner
            for output in range(first, first + width, avx512_dot.OUTPUTS):
                ahead = (
                    2 * avx512_dot.OUTPUTS * inner
                    if block == 0 and output + 2 * avx512_dot.OUTPUTS < outer
                    else 0
                )
                _multiply(
                    source,
                    product.weight + output * inner,
                    inner,
                    address(sums) + (output - first) * FLOAT,
                    some,
                    ahead,
                )
            for row in range(min(some * avx512_dot.ROWS, count - block * avx512_dot.ROWS)):
                number = block * avx512_dot.ROWS + row
                target = product.out + (number * outer + first) * _HALF
                _write(
                    address(sums) + row * avx512_dot.STRIDE,
                    product.bias + first * FLOAT,
                    outer * FLOAT,
                    scales[number],
                    target,
                    width,
                )
        done += 1
        first = take_task(place)
    return done


multiply_int8 = TeamJob(_multiply_all, PRODUCT)


@inlined
def _pack(rows: int, packed: int, scales: NDArray[np.float32], count: int, inner: int) -> None:
    """Write rows as blocks of integers, and what one of them stands for; the last row fills up
    the last block.
    """
    for row in range((count + avx512_dot.ROWS - 1) // avx512_dot.ROWS * avx512_dot.ROWS):
        source = rows + min(row, count - 1) * inner * _HALF
        target = (
            packed
            + row // avx512_dot.ROWS * avx512_dot.ROWS * inner
            + row % avx512_dot.ROWS * avx512_dot.PIECE
        )
        largest = simd_f32x8.splat(np.float32(0.0))
        for place in range(0, inner, simd_f32x8.WIDTH):
            some = load_lanes(BFLOAT16, source + place * _HALF)
            largest = simd_f32x8.larger(
                largest, simd_f32x8.with_sign(some, simd_f32x8.splat(np.float32(0.0)))
            )
        scale = max(simd_f32x8.largest(largest), np.float32(_TINY)) / np.float32(_LARGEST)
        if row < count:
            scales[row] = scale
        for place in range(0, inner, avx512_dot.PIECE):
            avx512_dot.quantise_piece(
                source + place * _HALF, target + place * avx512_dot.ROWS, np.float32(1.0) / scale
            )


@inlined
def _multiply(blocks: int, weight: int, size: int, sums: int, count: int, ahead: int) -> None:
    """All blocks with eight outputs, in groups as equal as can be; the first fetches what lies
    ahead.
    """
    groups = (count + avx512_dot.BLOCKS - 1) // avx512_dot.BLOCKS
    done, parts = 0, avx512_dot.ALL if ahead else 0
    while groups:
        some = (count - done + groups - 1) // groups
        source, target = (
            blocks + done * avx512_dot.ROWS * size,
            sums + done * avx512_dot.ROWS * avx512_dot.STRIDE,
        )
        if some == 3:
            _three(source, weight, size, target, ahead, parts)
        elif some == 2:
            _two(source, weight, size, target, ahead, parts)
        else:
            _one(source, weight, size, target, ahead, parts)
        done, groups, parts = done + some, groups - 1, 0


@inlined
def _write(sums: int, factors: int, stride: int, scale: Any, out: int, width: int) -> None:
    """Write `width` outputs of a row. `stride`: bytes from one factor of an output to the next."""
    for output in range(0, width, simd_f32x8.WIDTH):
        place = factors + output * FLOAT
        total = simd_f32x8.subtract(
            simd_f32x8.load(sums + output * FLOAT), simd_f32x8.load(place + stride)
        )
        total = simd_f32x8.multiply(
            simd_f32x8.multiply(total, simd_f32x8.load(place)), simd_f32x8.splat(scale)
        )
        simd_f32x8.store_bfloat16(
            out + output * _HALF, simd_f32x8.add(total, simd_f32x8.load(place + 2 * stride))
        )
