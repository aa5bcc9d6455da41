"""Test checkpoints that are packed at load: block contents and clear errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("gguf")
pytest.importorskip("accelerate")

from gguf import GGMLQuantizationType, quants
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from paceline import LLM, SamplingParams
from paceline.backend.packed_experts import PackedExperts
from paceline.backend.packed_weight import PackedWeight
from paceline.errors import ConfigError
from paceline.model.block_encoding import Q4_K, Q8_0, encode
from paceline.model.loading import load_model
from tests.support.gguf import write_gguf

PROMPTS = [[5, 9, 11, 5, 9], [30, 31, 32], [8, 8, 8, 8]]


def decoded(blocks: torch.Tensor, name: str) -> torch.Tensor:
    return torch.from_numpy(quants.dequantize(blocks.numpy(), GGMLQuantizationType[name]))


def checkpoint(folder: Path, dtype: torch.dtype = torch.bfloat16, mlp: int = 288) -> Path:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=256,
        intermediate_size=mlp,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=True,
        eos_token_id=None,
    )
    LlamaForCausalLM(config).to(dtype).save_pretrained(folder)
    return folder


@pytest.fixture(autouse=True)
def cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the cache folder of a test."""
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_blocks_of_q8_0_equal_those_of_gguf() -> None:
    weight = torch.randn(40, 64, generator=torch.Generator().manual_seed(0))
    weight[3] = 0.0
    weight[4, :32] = torch.arange(32) - 15.5  # halves after scaling
    expected = quants.quantize(weight.numpy(), GGMLQuantizationType.Q8_0)
    assert torch.equal(encode(weight, Q8_0), torch.from_numpy(expected))


@pytest.mark.parametrize("offset", [-3.0, -0.5, 0.0, 0.5, 3.0])
def test_blocks_of_q4_k_are_close_to_the_weights(offset: float) -> None:
    """Sixteen levels cover the range from the lowest value, or 0, to the highest."""
    generator = torch.Generator().manual_seed(0)
    scales = torch.logspace(-4, 2, 64)[:, None]
    weight = (torch.randn(64, 512, generator=generator) + offset) * scales
    error = (decoded(encode(weight, Q4_K), "Q4_K") - weight).view(64, -1, 32)
    groups = weight.view(64, -1, 32)
    spread = groups.amax(2).clamp(min=0) - groups.amin(2).clamp(max=0)
    assert (error.square().mean(2).sqrt() < 0.04 * spread.amax(1, keepdim=True)).all()
    if offset == 0:
        assert float(error.square().mean().sqrt() / weight.square().mean().sqrt()) < 0.075


def test_blocks_of_q4_k_hold_constant_rows() -> None:
    values = torch.tensor([0.0, 0.25, -0.25, 1e-9])
    weight = values[:, None].expand(4, 256)
    assert torch.allclose(decoded(encode(weight, Q4_K), "Q4_K"), weight, rtol=2e-3, atol=1e-7)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("weights", "block_format"), [("q8_0", Q8_0), ("q4_k", Q4_K)])
def test_model_has_the_packed_weights(
    tmp_path: Path, dtype: torch.dtype, weights: str, block_format: Any
) -> None:
    folder = checkpoint(tmp_path / "model", dtype)
    packed, original = load_model(folder, weights=weights), load_model(folder)
    assert packed.lm_head.weight is packed.get_input_embeddings().weight
    own: dict[str, Any] = dict(packed.named_parameters())
    for name, weight in original.named_parameters():
        found = own.pop(name)
        if weight.dim() == 1:
            assert torch.equal(found, weight.bfloat16())
            continue
        # 288 is no multiple of 256.
        used = Q8_0 if name.endswith("down_proj.weight") else block_format
        expected = decoded(encode(weight, used), used.name).bfloat16()
        assert isinstance(found, PackedWeight)
        assert found.block_format is used
        assert torch.equal(found.unpacked(), expected), name
    assert not own


def test_answers_equal_those_of_the_packed_model(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "model")
    plain, drafted = (
        LLM(folder, drafter, weights="q4_k", batch_invariant=True).generate(
            PROMPTS, SamplingParams(24)
        )
        for drafter in ("none", "auto")
    )
    assert [out.token_ids for out in plain] == [out.token_ids for out in drafted]


def test_experts_are_packed(tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = Qwen3MoeConfig(
        vocab_size=64,
        hidden_size=256,
        moe_intermediate_size=96,
        num_experts=4,
        num_experts_per_tok=2,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        eos_token_id=None,
    )
    Qwen3MoeForCausalLM(config).save_pretrained(tmp_path / "model")
    original, packed = (
        load_model(tmp_path / "model", weights=weights) for weights in (None, "q4_k")
    )
    for name, used in (("gate_up_proj", Q4_K), ("down_proj", Q8_0)):
        full_name = f"model.layers.0.mlp.experts.{name}"
        found, weight = packed.get_parameter(full_name), original.get_parameter(full_name)
        expected = decoded(encode(weight, used), used.name).bfloat16()
        assert isinstance(found, PackedExperts)
        assert torch.equal(found.unpacked(), expected.view(weight.shape))
    plain, drafted = (
        LLM(packed, drafter, batch_invariant=True).generate(PROMPTS, SamplingParams(24))
        for drafter in ("none", "auto")
    )
    assert [out.token_ids for out in plain] == [out.token_ids for out in drafted]


def test_a_checkpoint_is_packed_once(
    tmp_path: Path, cache_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = checkpoint(tmp_path / "model", mlp=300)
    first = load_model(folder, weights="q4_k")
    notes = capsys.readouterr().err
    assert "packing" in notes
    assert "in Q4_K" in notes
    assert "in BF16" in notes, "300 is no multiple of 32"
    second = load_model(folder, weights="q4_k")
    assert "packing" not in capsys.readouterr().err
    assert len(list(cache_folder.glob("packed-weights-v3/*/weights.bin"))) == 1
    for one, other in zip(first.parameters(), second.parameters(), strict=True):
        assert type(one) is type(other)
    load_model(folder, weights="q8_0")
    checkpoint(folder, torch.float32)
    load_model(folder, weights="q8_0")
    assert len(list(cache_folder.glob("packed-weights-v3/*/weights.bin"))) == 3


def test_refusals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = checkpoint(tmp_path / "model")
    with pytest.raises(ConfigError, match=r"weights: got 'q5_k'\. Did you mean 'q4_k'"):
        load_model(folder, weights="q5_k")
    with pytest.raises(ConfigError, match="got dtype='float32'; expected 'auto' or 'bfloat16'"):
        load_model(folder, "float32", weights="q4_k")
    with pytest.raises(ConfigError, match="got a GGUF file; expected the directory or hub id"):
        load_model(write_gguf(tmp_path / "tiny.gguf"), weights="q4_k")
    with pytest.raises(ConfigError, match="got a loaded model; expected the directory"):
        load_model(load_model(folder), weights="q4_k")
    with pytest.raises(ConfigError, match=r"weights: got 'q4_k' with engine='llama\.cpp'"):
        LLM(folder, engine="llama.cpp", weights="q4_k")
    with pytest.raises(ConfigError, match=r"got .*nothing.*cannot load|cannot load.*nothing"):
        load_model(tmp_path / "nothing", weights="q4_k")
    with monkeypatch.context() as patch:
        patch.setattr(torch.cuda, "is_available", lambda: True)
        with pytest.raises(ConfigError, match="got device='auto'; expected 'cpu'"):
            load_model(folder, weights="q4_k")
    (folder / "adapter_config.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"got an adapter in .* Merge"):
        load_model(folder, weights="q4_k")
    (folder / "adapter_config.json").unlink()
    config = json.loads((folder / "config.json").read_text())
    quantised = {**config, "quantization_config": {"quant_method": "fp8"}}
    (folder / "config.json").write_text(json.dumps(quantised))
    with pytest.raises(ConfigError, match="got a quantised checkpoint in"):
        load_model(folder, weights="q4_k")
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "t5"}))
    with pytest.raises(ConfigError, match="got a model of type 't5'"):
        load_model(folder, weights="q4_k")
    (folder / "config.json").unlink()
    with pytest.raises(ConfigError, match="cannot load a causal"):
        load_model(folder, weights="q4_k")
