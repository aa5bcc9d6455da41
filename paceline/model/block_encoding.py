"""Encode weights in the block formats of GGUF files."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from paceline.backend.block_formats import BF16, BLOCK_FORMATS, BlockFormat
from paceline.model.settings import LEVEL_SHIFTS, VALUES_PER_CHUNK

Q8_0, Q4_K = BLOCK_FORMATS[8], BLOCK_FORMATS[12]
_SUB_BLOCK = 32  # values with a common scale and minimum in Q4_K
_MAX_LEVEL, _MAX_SCALE = 15, 63


class _Line(NamedTuple):
    """Scale and minimum of each sub-block.

    They approximate a value as `scale * level - minimum`, with an integer level from 0 to 15.
    """

    scale: Tensor
    minimum: Tensor


def encode(weight: Tensor, block_format: BlockFormat) -> Tensor:
    """Encode the rows of a weight as blocks, uint8 [rows, bytes per row].

    Args:
        weight: Weight of any floating-point type; the last dimension is a multiple of the block
            length.
        block_format: BF16, Q8_0 or Q4_K.
    """
    rows = weight.detach().reshape(-1, weight.shape[-1])
    if block_format is BF16:
        return rows.bfloat16().contiguous().view(torch.uint8)
    encode_blocks = {Q8_0: _encode_q8_0, Q4_K: _encode_q4_k}[block_format]
    chunk_rows = max(1, VALUES_PER_CHUNK // rows.shape[1])
    chunks = [
        encode_blocks(chunk.float().contiguous().view(-1, block_format.numbers)).view(
            len(chunk), -1
        )
        for chunk in torch.split(rows, chunk_rows)
    ]
    return torch.cat(chunks)


def _encode_q8_0(values: Tensor) -> Tensor:
    """Encode blocks [n, 32] with the formula of ggml's reference implementation."""
    scale = values.abs().amax(1, keepdim=True) / 127
    inverse = torch.where(scale == 0, 0, 1 / scale)
    scaled = values * inverse
    levels = torch.trunc(scaled + 0.5 * scaled.sign())  # rounds halves away from zero
    parts = (scale.half().view(torch.uint8), levels.to(torch.int8).view(torch.uint8))
    return torch.cat(parts, 1)


def _encode_q4_k(values: Tensor) -> Tensor:
    """Encode super-blocks [n, 256] as Q4_K.

    Each super-block consists of eight sub-blocks, each with a scale and a minimum.
    """
    count = len(values)
    sub_blocks = values.view(-1, _SUB_BLOCK)
    line = _fitted_line(sub_blocks)
    scale, scale_levels = _six_bits(line.scale.view(count, -1))
    minimum, minimum_levels = _six_bits(line.minimum.view(count, -1))
    steps = (scale * scale_levels).view(-1, 1)
    levels = _levels(sub_blocks + (minimum * minimum_levels).view(-1, 1), _inverse(steps))
    pairs = levels.to(torch.uint8).view(count, -1, 2, _SUB_BLOCK)
    parts = (
        scale.half().view(torch.uint8),
        minimum.half().view(torch.uint8),
        _packed_scales(scale_levels.to(torch.uint8), minimum_levels.to(torch.uint8)),
        (pairs[:, :, 0] | pairs[:, :, 1] << 4).view(count, -1),
    )
    return torch.cat(parts, 1)


def _fitted_line(values: Tensor) -> _Line:
    """For each sub-block, find the scale and minimum with the least squared error.

    The function makes several trials, and keeps the best result for each sub-block. In a trial, it

    1. divides the range of the values into levels (each trial uses a different number of levels),
    2. rounds each value to the nearest level, and
    3. fits the scale and the minimum to the values and their levels by linear regression.
    """
    lowest = values.amin(1, keepdim=True).clamp(max=0)
    spread = values.amax(1, keepdim=True).clamp(min=0) - lowest
    inverse = _inverse(spread)
    best = _Line(spread / _MAX_LEVEL, -lowest)
    least = torch.full_like(spread, torch.inf)
    for shift in LEVEL_SHIFTS:
        levels = _levels(values - lowest, inverse * (_MAX_LEVEL + shift))
        line = _regression(values, levels)
        error = (line.scale * levels - line.minimum - values).square_().sum(1, keepdim=True)
        is_better = error < least
        least = torch.where(is_better, error, least)
        best = _Line(*(torch.where(is_better, *pair) for pair in zip(line, best, strict=True)))
    return best


def _regression(values: Tensor, levels: Tensor) -> _Line:
    """Fit each row's scale and minimum by least squares.

    If the minimum would be negative, it is set to 0 and only the scale is fitted.
    """
    level_sum, value_sum = levels.sum(1, keepdim=True), values.sum(1, keepdim=True)
    squares = levels.square().sum(1, keepdim=True)
    products = (levels * values).sum(1, keepdim=True)
    variance = squares * _SUB_BLOCK - level_sum.square()
    scale = (products * _SUB_BLOCK - level_sum * value_sum) * _inverse(variance)
    minimum = (scale * level_sum - value_sum) / _SUB_BLOCK
    is_negative = minimum < 0
    scale = torch.where(is_negative, products * _inverse(squares), scale)
    return _Line(scale.clamp(min=0), minimum.clamp(min=0))


def _levels(distances: Tensor, inverse_step: Tensor) -> Tensor:
    return (distances * inverse_step).round_().clamp_(0, _MAX_LEVEL)


def _inverse(values: Tensor) -> Tensor:
    return torch.where(values == 0, 0, 1 / values)


def _six_bits(values: Tensor) -> tuple[Tensor, Tensor]:
    """Quantise each row to six bits; return the step sizes and the integer multiples.

    The step sizes, [n, 1], are float32 numbers that float16 represents exactly. The multiples of
    the step sizes, [n, 8], range from 0 to 63.
    """
    step = (values.amax(1, keepdim=True) / _MAX_SCALE).half().float()
    return step, (values * _inverse(step)).round_().clamp_(0, _MAX_SCALE)


def _packed_scales(scales: Tensor, minima: Tensor) -> Tensor:
    """Pack eight scales and eight minima of six bits into 12 bytes.

    Let s0 to s7 be the scales, and m0 to m7 the minima:

        bytes      lower bits                        upper bits
        =======    ==============================    ==============================
        0 to 3     s0 to s3, all six bits            s4 to s7, their upper two bits
        4 to 7     m0 to m3, all six bits            m4 to m7, their upper two bits
        8 to 11    s4 to s7, their lower four bits   m4 to m7, their lower four bits

    For example, byte 0 holds s0 and the upper two bits of s4.
    """
    first, last = (scales[:, :4], minima[:, :4]), (scales[:, 4:], minima[:, 4:])
    upper = [low | high >> 4 << 6 for low, high in zip(first, last, strict=True)]
    return torch.cat((*upper, last[0] & 15 | (last[1] & 15) << 4), 1)
