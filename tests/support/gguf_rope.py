"""Add the scaling of rotary frequencies to the GGUF files of tests."""

from __future__ import annotations

import math
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray


def llama3_factors(scale: float, size: int = 64, base: float = 500000.0) -> NDArray[np.float32]:
    """Return the frequency factors that llama.cpp's converter writes for Llama 3.1 and later."""
    factors = []
    for index in range(0, size, 2):
        length = 2 * math.pi * base ** (index / size)
        share = (8192 / length - 1) / 3
        factors.append(1 / ((1 - share) / scale + share))
        if length < 8192 / 4:
            factors[-1] = 1.0
        elif length > 8192:
            factors[-1] = scale
    return np.array(factors, np.float32)


def add_yarn(writer: Any) -> None:
    """Add YaRN scaling by 4, from a context of 64 tokens."""
    writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    writer.add_rope_scaling_factor(4.0)
    writer.add_rope_scaling_orig_ctx_len(64)


def add_yarn_with_attention(writer: Any) -> None:
    """Add the same YaRN scaling, with a multiple of its attention factor."""
    add_yarn(writer)
    writer.add_float32(f"{writer.arch}.rope.scaling.attn_factor", 0.7)


def add_linear(writer: Any) -> None:
    """Add linear scaling by 4."""
    writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
    writer.add_rope_scaling_factor(4.0)


def add_llama3(writer: Any, scale: float = 8.0) -> None:
    """Add the factors of Llama 3.1 for the frequencies of `write_gguf`."""
    writer.add_tensor("rope_freqs.weight", llama3_factors(scale, 16, 10000.0))
