"""Random packed blocks of every format, and their values by `gguf`."""

from __future__ import annotations

from typing import Any

import gguf
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from paceline.backend.block_formats import BLOCK_FORMATS, BlockFormat
from paceline.backend.packed_weight import PackedWeight

# Offsets of the float16 scales in a block; other bytes may have any value.
_SCALES = {"Q4_1": (0, 2), "Q5_1": (0, 2), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}
_PLAIN = {"F32": np.float32, "F16": np.float16}
FORMATS = [name for name in (each.name for each in BLOCK_FORMATS.values()) if name != "BF16"]


def format_of(name: str) -> BlockFormat:
    """Return a block format by name."""
    return next(each for each in BLOCK_FORMATS.values() if each.name == name)


def random_blocks(name: str, rows: int, inner: int, seed: int = 0) -> NDArray[Any]:
    """Return the bytes of a random weight [rows, inner]."""
    random, block_format = np.random.default_rng(seed), format_of(name)
    if name in _PLAIN:
        return random.standard_normal((rows, inner)).astype(_PLAIN[name]).view(np.uint8)
    blocks = random.integers(0, 256, (rows, block_format.row_bytes(inner)), dtype=np.uint8)
    each = blocks.reshape(-1, block_format.bytes)
    for offset in _SCALES.get(name, (0,)):
        scales = (random.standard_normal(len(each)) * 0.01).astype(np.float16)
        each[:, offset : offset + 2] = scales.view(np.uint8).reshape(-1, 2)
    return blocks


def numbers_of(name: str, blocks: NDArray[Any]) -> Tensor:
    """Return the values of a packed weight, rounded to bfloat16."""
    typed = blocks.view(_PLAIN.get(name, np.uint8))
    numbers = gguf.quants.dequantize(typed, gguf.GGMLQuantizationType[name])
    return torch.from_numpy(np.ascontiguousarray(numbers)).bfloat16()


def packed_weight(
    name: str, rows: int, inner: int, order: Tensor | None = None
) -> tuple[PackedWeight, Tensor]:
    """Return a random packed weight and its values."""
    blocks = random_blocks(name, rows, inner)
    numbers = numbers_of(name, blocks)
    weight = PackedWeight(torch.from_numpy(blocks), format_of(name), inner, order)
    return weight, numbers if order is None else numbers[order]
