"""Test values in GGUF headers that transformers ignores, such as rotary scaling."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

pytest.importorskip("gguf")
pytest.importorskip("accelerate")

from transformers import AutoConfig, Gemma3TextConfig, Gemma4TextConfig, LlamaConfig, Phi3Config
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from paceline import LLM, SamplingParams
from paceline.errors import ConfigError
from paceline.model import gguf_header
from paceline.model.gguf import UnsupportedContent
from paceline.model.gguf_config import complete_config
from paceline.model.gguf_rope import set_rope_scaling
from paceline.model.loading import load_model
from tests.support.gguf import write_gguf
from tests.support.gguf_dense import write_gemma4
from tests.support.gguf_rope import add_linear, add_llama3, add_yarn, llama3_factors

PROMPT = [(7 * index) % 60 + 3 for index in range(150)]
LLAMA = {"hidden_size": 512, "num_attention_heads": 8, "rope_theta": 500000.0}


def scaled(config: Any, header: Mapping[str, Any], **vectors: NDArray[np.float32]) -> Any:
    """Return the rotary parameters of a configuration after reading a header."""
    metadata = {"general.architecture": "tiny"}
    metadata |= {f"tiny.rope.scaling.{name}": value for name, value in header.items()}
    set_rope_scaling(config, metadata, lambda name: vectors.get(name.removesuffix(".weight")))
    return config.rope_parameters


@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_llama_3_scaling_is_recognised(factor: float) -> None:
    found = scaled(LlamaConfig(**LLAMA), {}, rope_freqs=llama3_factors(factor))
    assert found == {
        "rope_type": "llama3",
        "rope_theta": 500000.0,
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }


def test_other_frequency_factors_are_refused() -> None:
    config = LlamaConfig(**LLAMA)
    before = dict(config.rope_parameters)
    assert scaled(config, {}, rope_freqs=np.ones(32, np.float32)) == before
    with pytest.raises(ValueError, match=r"factors other than those of Llama 3\.1"):
        scaled(config, {}, rope_freqs=np.linspace(1, 8, 32, dtype=np.float32))
    assert config.rope_parameters == before
    with pytest.raises(ValueError, match="rotary scaling 'wave'"):
        scaled(config, {"type": "wave"})


def test_yarn_and_linear_scaling() -> None:
    yarn = {"type": "yarn", "factor": 4.0, "original_context_length": 4096}
    found = scaled(LlamaConfig(), yarn)
    assert (found["rope_type"], found["factor"]) == ("yarn", 4.0)
    assert found["original_max_position_embeddings"] == 4096
    found = scaled(LlamaConfig(), {"type": "linear", "factor": 2.0})
    assert (found["rope_type"], found["factor"]) == ("linear", 2.0)
    assert scaled(LlamaConfig(), {"type": "linear", "factor": 1.0})["rope_type"] == "default"
    assert scaled(LlamaConfig(), {"type": "none"})["rope_type"] == "default"


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, 1 + 0.1 * math.log(4)),
        ({"attn_factor": 0.5}, 0.5 + 0.05 * math.log(4)),
        ({"yarn_attn_factor": 0.7}, 0.7),
        ({"attn_factor": 0.5, "yarn_attn_factor": 0.7}, 0.35),
    ],
)
def test_attention_factors_of_yarn(values: dict[str, float], expected: float) -> None:
    config = LlamaConfig()
    scaled(config, {"type": "yarn", "factor": 4.0, "original_context_length": 4096} | values)
    _, factor = ROPE_INIT_FUNCTIONS["yarn"](config, torch.device("cpu"))
    assert factor == pytest.approx(expected)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"type": "linear", "factor": 4.0, "attn_factor": 0.5}, "attention factor with rotary"),
        ({"attn_factor": 0.5}, "attention factor with rotary"),
        ({"type": "yarn", "factor": 4.0, "yarn_log_multiplier": 0.5}, "YaRN log multiplier"),
    ],
)
def test_attention_factors_without_a_counterpart_are_refused(
    values: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        scaled(LlamaConfig(), values)


def test_layers_with_a_window_stay_unscaled() -> None:
    found = scaled(Gemma3TextConfig(), {"type": "linear", "factor": 8.0})
    assert found["full_attention"]["rope_type"] == "linear"
    assert found["full_attention"]["factor"] == 8.0
    assert found["sliding_attention"]["rope_type"] == "default"


def test_factors_of_long_and_short_texts() -> None:
    config = Phi3Config(pad_token_id=0)
    short, long = (np.array([first, 2.0], np.float32) for first in (1.0, 3.0))
    header = {"original_context_length": 2048, "attn_factor": 1.25}
    found = scaled(config, header, rope_factors_long=long, rope_factors_short=short)
    assert found["rope_type"] == "longrope"
    assert (found["short_factor"], found["long_factor"]) == ([1.0, 2.0], [3.0, 2.0])
    assert found["attention_factor"] == 1.25
    assert config.original_max_position_embeddings == 2048


def test_the_share_of_a_head_that_rotates_comes_from_the_factors() -> None:
    config = Gemma4TextConfig(num_hidden_layers=6)
    factors = np.array([1.0] * 3 + [1e30] * 5, np.float32)
    assert (
        scaled(config, {}, rope_freqs=factors)["full_attention"]["partial_rotary_factor"] == 0.375
    )
    with pytest.raises(UnsupportedContent, match="rotates only a part"):
        scaled(config, {}, rope_freqs=factors * 2)


def test_layers_of_gemma_4_come_from_the_header(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))
    config: Any = load_model(write_gemma4(tmp_path / "tiny.gguf"), unpack=False).config
    assert config.layer_types == ["sliding_attention", "full_attention"] * 2
    assert [config.per_layer_config[layer].head_dim for layer in range(4)] == [16, 32] * 2
    assert config.rope_parameters["sliding_attention"]["rope_theta"] == 5000.0
    assert config.rope_parameters["full_attention"]["rope_theta"] == 20000.0
    assert config.vocab_size_per_layer_input == config.vocab_size


@pytest.mark.parametrize(("layers", "expected"), [(62, 16), (26, 256)])
def test_gemma_27b_scales_attention_by_the_model_size(layers: int, expected: int) -> None:
    config = Gemma3TextConfig(hidden_size=64, num_attention_heads=4, num_hidden_layers=layers)
    complete_config(config, {"general.architecture": "gemma3"})
    assert config.query_pre_attn_scalar == expected


@pytest.mark.parametrize("rope", [add_yarn, add_linear, add_llama3])
def test_packed_and_converted_models_use_the_scaling(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rope: Callable[[Any], None]
) -> None:
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))
    path = write_gguf(tmp_path / "tiny.gguf", "Q8_0", rope=rope)
    plain: Any = load_model(write_gguf(tmp_path / "plain.gguf", "Q8_0"), unpack=False)
    models: list[Any] = [load_model(path, unpack=unpack) for unpack in (False, True)]
    frequencies = [model.model.rotary_emb.inv_freq for model in models]
    assert torch.equal(*frequencies)
    assert not torch.equal(frequencies[0], plain.model.rotary_emb.inv_freq)
    first, second = (
        LLM(model, "auto", batch_invariant=True).generate([PROMPT], SamplingParams(16))[0].token_ids
        for model in models
    )
    assert first == second


def test_files_that_differ_in_factors_alone_get_their_own_configurations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))
    factors = []
    for factor in (8.0, 4.0):

        def rope(writer: Any, factor: float = factor) -> None:
            writer.add_tensor("unused.weight", np.zeros(1 << 26, np.uint8).view(np.float32))
            add_llama3(writer, factor)

        path = write_gguf(tmp_path / f"{factor}.gguf", "Q8_0", rope=rope)
        config = AutoConfig.from_pretrained(gguf_header.described([path]))
        factors.append(config.rope_parameters["factor"])
    assert factors == [8.0, 4.0]


def test_a_file_with_unknown_factors_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))

    def rope(writer: Any) -> None:
        writer.add_tensor("rope_freqs.weight", np.linspace(1, 2, 8, dtype=np.float32))

    path = write_gguf(tmp_path / "tiny.gguf", "Q8_0", rope=rope)
    for unpack in (True, False):
        with pytest.raises(
            ConfigError, match=r"got rotary frequency factors other than those of Ll"
        ):
            load_model(path, unpack=unpack)
