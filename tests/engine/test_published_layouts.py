"""Test GPTQ, AWQ and MXFP4 checkpoints, written in the published layouts.

GPTQ and AWQ need `pip install gptqmodel optimum`; their tests are skipped without it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM, GptOssConfig, GptOssForCausalLM

from paceline import LLM, SamplingParams
from tests.support.quantised import PROMPTS, check_decoding, generated, save_llama, sums

pytestmark = pytest.mark.filterwarnings("ignore")  # of the libraries
GROUP = 32
AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]
FP4 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))


def pack_nibbles(nibbles: Tensor, axis: int, order: list[int]) -> Tensor:
    """Pack eight numbers from 0 to 15 along an axis into an int32."""
    last = nibbles.long().movedim(axis, -1)
    groups = last.reshape(*last.shape[:-1], -1, 8)[..., order]
    words: Tensor = (groups << (4 * torch.arange(8))).sum(-1)
    signed = words.where(words < 1 << 31, words - (1 << 32))
    return signed.int().movedim(-1, axis).contiguous()


def quantise_checkpoint(folder: Path, method: dict[str, Any]) -> dict[str, Tensor]:
    """Quantise the layers' weights to 4 bits; return the weights that the file represents."""
    weights, meant = load_file(folder / "model.safetensors"), {}
    for name in [name for name in weights if "proj" in name]:
        given, stem = weights.pop(name).T, name.removesuffix(".weight")
        order = torch.randperm(len(given)) if method.get("desc_act") else torch.arange(len(given))
        groups = given[order].reshape(-1, GROUP, given.shape[1])  # [groups, GROUP, out]
        low, high = groups.amin(1), groups.amax(1)
        scales = ((high - low) / 15).half()
        zeros = (-low / scales.float()).round().clamp(1, 15)
        numbers = (groups / scales.float()[:, None] + zeros[:, None]).round().clamp(0, 15)
        values = (numbers - zeros[:, None]) * scales.float()[:, None]
        back = order.argsort()
        meant[name], flat = values.flatten(0, 1)[back].T, numbers.flatten(0, 1)[back]
        if method["quant_method"] == "gptq":  # GPTQ stores zero points minus one
            weights[f"{stem}.qweight"] = pack_nibbles(flat, 0, [*range(8)])
            weights[f"{stem}.qzeros"] = pack_nibbles(zeros - 1, 1, [*range(8)])
            weights[f"{stem}.g_idx"] = (back // GROUP).int()
        else:
            weights[f"{stem}.qweight"] = pack_nibbles(flat, 1, AWQ_ORDER)
            weights[f"{stem}.qzeros"] = pack_nibbles(zeros, 1, AWQ_ORDER)
        weights[f"{stem}.scales"] = scales
    write_checkpoint(folder, weights, method)
    return meant


def write_checkpoint(folder: Path, weights: dict[str, Tensor], method: dict[str, Any]) -> None:
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "quantization_config": method}))


@pytest.mark.parametrize(
    "method",
    [
        {"quant_method": "gptq", "desc_act": False, "sym": False, "checkpoint_format": "gptq"},
        {"quant_method": "gptq", "desc_act": True, "sym": False, "checkpoint_format": "gptq"},
        {"quant_method": "awq", "zero_point": True, "version": "gemm"},
    ],
    ids=["gptq", "gptq, sorted by activation", "awq"],
)
def test_gptq_and_awq_checkpoints(tmp_path: Path, method: dict[str, Any]) -> None:
    pytest.importorskip("gptqmodel", reason="pip install gptqmodel optimum")
    folder = save_llama(tmp_path / "model")
    meant = quantise_checkpoint(folder, {**method, "bits": 4, "group_size": GROUP})
    model: Any = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, device_map="cpu"
    ).eval()
    product = model.model.layers[1].mlp.down_proj
    assert type(product) is not torch.nn.Linear
    rows = torch.randn(3, product.in_features)
    expected = rows @ meant["model.layers.1.mlp.down_proj.weight"].T
    torch.testing.assert_close(product(rows).float(), expected, rtol=1e-2, atol=1e-2)
    check_decoding(model)


def to_fp4(weights: Tensor) -> tuple[Tensor, Tensor]:
    """Quantise [..., in] to FP4 with a power of two per 32 numbers.

    Returns:
        Blocks, uint8 [..., in / 32, 16], and scales, uint8 [..., in / 32].
    """
    groups = weights.reshape(*weights.shape[:-1], -1, 32)
    exponents = (groups.abs().amax(-1) / 6).clamp(min=2.0**-126).log2().ceil()
    scaled = groups / exponents.exp2()[..., None]
    nearest = (scaled.abs()[..., None] - FP4).abs().argmin(-1)
    numbers = (nearest + 8 * (scaled < 0)).to(torch.uint8)
    return numbers[..., ::2] | numbers[..., 1::2] << 4, (exponents + 127).to(torch.uint8)


def test_mxfp4_is_unpacked(tmp_path: Path) -> None:
    """Check a checkpoint like gpt-oss, which transformers unpacks on a CPU."""
    torch.manual_seed(0)
    config = GptOssConfig(
        vocab_size=128,
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        num_local_experts=4,
        num_experts_per_tok=2,
        initializer_range=0.25,
        layer_types=["sliding_attention", "full_attention"],
        sliding_window=8,
        max_position_embeddings=512,
        rope_parameters={"rope_type": "default", "rope_theta": 1e4},
        eos_token_id=2,
        pad_token_id=0,
    )
    folder = tmp_path / "model"
    GptOssForCausalLM(config).save_pretrained(folder)
    weights, meant = load_file(folder / "model.safetensors"), {}
    for name in [name for name in weights if name.endswith(("gate_up_proj", "down_proj"))]:
        blocks, scales = to_fp4(weights.pop(name).transpose(1, 2))
        weights[f"{name}_blocks"], weights[f"{name}_scales"] = blocks, scales
        nibbles = torch.stack([blocks & 15, blocks >> 4], dim=-1).flatten(-2)
        signed = FP4[(nibbles & 7).int()] * (1 - 2 * (nibbles >> 3).float())
        values = signed * (scales.float() - 127).exp2()[..., None]
        meant[name] = values.flatten(-2).transpose(1, 2)
    write_checkpoint(
        folder, weights, {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}
    )
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    for name, values in meant.items():
        assert torch.equal(model.get_parameter(name), values)
    before = sums(model)
    llm = LLM(model, "prompt_lookup", max_batch=2)
    outs = llm.generate(PROMPTS, SamplingParams(max_new_tokens=12, ignore_eos=True))
    assert [out.token_ids for out in outs] == [generated(model, prompt) for prompt in PROMPTS]
    assert sums(model) == before
