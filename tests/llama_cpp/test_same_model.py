"""Compare paceline's reading of GGUF files with llama.cpp's, an independent reader."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("gguf")
pytest.importorskip("accelerate")

import gguf
import numpy as np

from paceline import LLM, SamplingParams
from paceline.model.loading import load_model
from tests.support.gguf import write_gguf
from tests.support.gguf_architectures import (
    write_experts,
    write_hybrid,
    write_qwen2_moe,
    write_qwen35,
)
from tests.support.gguf_dense import DENSE
from tests.support.llama_cpp import needs_library

pytestmark = needs_library
TOP = 5
PARAMS = SamplingParams(1, logprobs=TOP)
PROMPTS = [
    [(7 * index + start) % 57 + 3 for index in range(size)] for start, size in ((1, 200), (2, 90))
]
# llama.cpp rounds activations to 8 bits, even for float32 weights.
TOLERANCE = 0.3


def _scaling(kind: Any) -> Callable[[Any], None]:
    def add(writer: Any) -> None:
        writer.add_rope_scaling_type(kind)
        writer.add_rope_scaling_factor(4.0)
        writer.add_rope_scaling_orig_ctx_len(64)

    return add


def _llama3(writer: Any) -> None:
    """Add the factors of Llama 3.1 for the small model's frequencies."""
    factors = [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]
    lengths = 2 * np.pi * 10000.0 ** (np.arange(0, 16, 2) / 16)
    for index, length in enumerate(lengths):
        share = (8192 / length - 1) / 3
        if length > 8192:
            factors[index] = 8.0
        elif length >= 2048:
            factors[index] = 1 / ((1 - share) / 8 + share)
    writer.add_tensor("rope_freqs.weight", np.array(factors, np.float32))


FILES: dict[str, Callable[[Path], Path]] = {
    "llama": write_gguf,
    "yarn": lambda path: write_gguf(path, rope=_scaling(gguf.RopeScalingType.YARN)),
    "linear": lambda path: write_gguf(path, rope=_scaling(gguf.RopeScalingType.LINEAR)),
    "llama3": lambda path: write_gguf(path, rope=_llama3),
    "qwen2moe": lambda path: write_qwen2_moe(path, "F32"),
    "qwen3moe": write_experts,
    "lfm2": write_hybrid,
    "qwen35": lambda path: write_qwen35(path, "F32"),
    "qwen35moe": lambda path: write_qwen35(path, "F32", experts=True),
} | DENSE


@pytest.mark.parametrize("name", FILES)
def test_probabilities_are_close_to_those_of_llama_cpp(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))
    path = FILES[name](tmp_path / "tiny.gguf")
    own = LLM(load_model(path, "float32"), "none").generate(PROMPTS, PARAMS)
    theirs = LLM(path, "none", engine="llama.cpp").generate(PROMPTS, PARAMS)
    for one, other in zip(own, theirs, strict=True):
        assert one.logprobs is not None
        assert other.logprobs is not None
        (ours,), (expected,) = one.logprobs, other.logprobs
        shared = ours.keys() & expected.keys()
        assert len(shared) >= TOP - 1
        assert all(abs(ours[token] - expected[token]) < TOLERANCE for token in shared)
