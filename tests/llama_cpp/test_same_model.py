"""Compare paceline's reading of GGUF files with llama.cpp's, an independent reader."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("gguf")
pytest.importorskip("accelerate")

from paceline import LLM, SamplingParams
from paceline.model.loading import load_model
from tests.support.gguf import write_gguf
from tests.support.gguf_architectures import (
    write_experts,
    write_hybrid,
    write_mamba,
    write_minimax,
    write_qwen2_moe,
    write_qwen35,
)
from tests.support.gguf_dense import DENSE
from tests.support.gguf_rope import (
    add_linear,
    add_llama3,
    add_yarn,
    add_yarn_with_attention,
)
from tests.support.llama_cpp import needs_library

pytestmark = needs_library
TOP = 5
PARAMS = SamplingParams(1, logprobs=TOP)
PROMPTS = [
    [(7 * index + start) % 57 + 3 for index in range(size)] for start, size in ((1, 200), (2, 90))
]
# llama.cpp rounds activations to 8 bits, even for float32 weights.
TOLERANCE = 0.3


FILES: dict[str, Callable[[Path], Path]] = {
    "llama": write_gguf,
    "yarn": lambda path: write_gguf(path, rope=add_yarn),
    "yarn-attention": lambda path: write_gguf(path, rope=add_yarn_with_attention),
    "linear": lambda path: write_gguf(path, rope=add_linear),
    "llama3": lambda path: write_gguf(path, rope=add_llama3),
    "mamba": lambda path: write_mamba(path, "F32"),
    "minimax-m2": lambda path: write_minimax(path, "F32"),
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
