"""Test checkpoints as quantisation libraries load them.

Each test is skipped where its library is not installed.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, QuantoConfig

from paceline import LLM, SamplingParams
from paceline.errors import UnsupportedModelError
from tests.support.quantised import (
    PROMPTS,
    check_approximate_decoding,
    check_decoding,
    generated,
    save_llama,
)

pytestmark = pytest.mark.filterwarnings("ignore")  # of the libraries


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save_llama(tmp_path / "model")


def load(folder: Path, config: Any) -> Any:
    return AutoModelForCausalLM.from_pretrained(
        folder, quantization_config=config, dtype=torch.float32, device_map="cpu"
    ).eval()


@pytest.mark.parametrize("kind", ["nf4", "fp4"])
def test_bitsandbytes_4_bit(folder: Path, kind: str) -> None:
    pytest.importorskip("bitsandbytes")
    config = BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type=kind, bnb_4bit_compute_dtype=torch.float32
    )
    check_decoding(load(folder, config))


def test_bitsandbytes_8_bit_is_refused(folder: Path) -> None:
    """Check that LLM.int8() is refused: its columns depend on all rows of a batch."""
    pytest.importorskip("bitsandbytes")
    model = load(folder, BitsAndBytesConfig(load_in_8bit=True))
    with pytest.raises(UnsupportedModelError, match=r"Linear8bitLt.* change by 0\.0\d+ of"):
        LLM(model, "none")


@pytest.mark.parametrize("weights", ["int8", "int4", "int2", "float8"])
def test_quanto(folder: Path, weights: str) -> None:
    pytest.importorskip("optimum.quanto")
    check_decoding(load(folder, QuantoConfig(weights=weights)))


@pytest.mark.parametrize(
    "name", ["Int8WeightOnlyConfig", "Float8WeightOnlyConfig", "IntxWeightOnlyConfig"]
)
def test_torchao(folder: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    quantization = pytest.importorskip("torchao.quantization")
    # so that our products are used, as for 34 million weights and more
    monkeypatch.setattr("paceline.cpu.product_choice.MIN_TIMED_WEIGHTS", 0)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    quantization.quantize_(model, getattr(quantization, name)())
    check_decoding(model)


@pytest.mark.parametrize(
    "name", ["Int8DynamicActivationInt8WeightConfig", "Int8DynamicActivationIntxWeightConfig"]
)
def test_torchao_with_a_scale_per_token(folder: Path, name: str) -> None:
    quantization = pytest.importorskip("torchao.quantization")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    quantization.quantize_(model, getattr(quantization, name)())
    check_approximate_decoding(model)


def compressed_model(folder: Path, scales: str | None = None) -> Any:
    """Return the model as compressed-tensors loads it.

    Weights have 4 bits; with `scales`, weights and activations have FP8, with dynamic scales per
    "token" or "tensor".
    """
    tensors = pytest.importorskip("compressed_tensors.quantization")
    compressors = pytest.importorskip("compressed_tensors.compressors")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    weights = (
        {"num_bits": 8, "type": "float", "strategy": "channel"}
        if scales
        else {"num_bits": 4, "strategy": "group", "group_size": 32}
    )
    group: dict[str, Any] = {"targets": ["Linear"], "weights": {"symmetric": True, **weights}}
    if scales:
        group["input_activations"] = {
            "num_bits": 8,
            "type": "float",
            "strategy": scales,
            "dynamic": True,
        }
    kind = "float-quantized" if scales else "pack-quantized"
    config = tensors.QuantizationConfig(
        config_groups={"group_0": group}, ignore=["lm_head"], format=kind
    )
    tensors.apply_quantization_config(model, config)
    for module in model.modules():
        if hasattr(module, "quantization_scheme"):
            size = weights.get("group_size", module.in_features)
            largest = 448.0 if scales else 7.0
            module.weight_scale.data.copy_(
                module.weight.detach().unflatten(1, (-1, size)).abs().amax(-1) / largest
            )
            module.quantization_status = tensors.QuantizationStatus.FROZEN
    compressor = compressors.ModelCompressor.from_pretrained_model(model, quantization_format=kind)
    compressor.compress_model(model)
    model.save_pretrained(folder.parent / "packed")
    compressor.update_config(folder.parent / "packed")
    return AutoModelForCausalLM.from_pretrained(
        folder.parent / "packed", dtype=torch.float32, device_map="cpu"
    ).eval()


@pytest.mark.parametrize("runs_before", [True, False])
def test_compressed_tensors_4_bit(folder: Path, runs_before: bool) -> None:
    check_decoding(compressed_model(folder), runs_before)


def test_compressed_tensors_with_a_scale_per_token(folder: Path) -> None:
    model = compressed_model(folder, "token")
    check_approximate_decoding(model)
    check_approximate_decoding(copy.deepcopy(model))


def test_compressed_tensors_with_one_scale_is_refused(folder: Path) -> None:
    with pytest.raises(UnsupportedModelError, match="depend on one another"):
        LLM(compressed_model(folder, "tensor"), "none")


def test_fp8_in_blocks_is_unpacked(folder: Path) -> None:
    """Check FP8 blocks as DeepSeek publishes them; transformers unpacks them on a CPU."""
    if torch.cuda.is_available():
        pytest.skip("transformers does not unpack the weights here")
    weights = load_file(folder / "model.safetensors")
    for name in [name for name in weights if "proj" in name]:
        given = weights[name]
        blocks = given.unflatten(1, (-1, 128)).unflatten(0, (-1, min(128, len(given))))
        scales = blocks.abs().amax((1, 3), keepdim=True) / 448
        weights[name] = (blocks / scales).reshape(given.shape).to(torch.float8_e4m3fn)
        weights[f"{name}_scale_inv"] = scales[:, 0, :, 0].contiguous()
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    method = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128] * 2}
    (folder / "config.json").write_text(json.dumps({**config, "quantization_config": method}))
    model = load(folder, None)
    assert type(model.model.layers[0].mlp.down_proj) is torch.nn.Linear
    llm = LLM(model, "prompt_lookup", max_batch=2, batch_invariant=False)
    outs = llm.generate(PROMPTS, SamplingParams(max_new_tokens=12, ignore_eos=True))
    assert [out.token_ids for out in outs] == [generated(model, prompt) for prompt in PROMPTS]
