"""Checkpoints as the libraries of quantised weights load them; each test is skipped where its
library is not installed.
"""

from __future__ import annotations

import copy
import hashlib
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    BitsAndBytesConfig,
    LlamaConfig,
    LlamaForCausalLM,
    QuantoConfig,
)

from paceline import LLM, SamplingParams
from paceline.errors import ConfigError, UnsupportedModelError

pytestmark = pytest.mark.filterwarnings("ignore")  # the libraries' own
PROMPTS = [[5, 6, 7, 5, 6, 7, 5, 6], [9, 3] * 8, [4]]
SIZES = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    ends = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    config = LlamaConfig(
        vocab_size=128,
        num_key_value_heads=2,
        initializer_range=0.25,
        max_position_embeddings=512,
        **SIZES,
        **ends,
    )
    LlamaForCausalLM(config).save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def load(folder: Path, config: Any) -> Any:
    return AutoModelForCausalLM.from_pretrained(
        folder, quantization_config=config, dtype=torch.float32, device_map="cpu"
    ).eval()


def sums(model: Any) -> dict[str, str]:
    found = {}
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        parts = (
            [getattr(tensor, part) for part in tensor.__tensor_flatten__()[0]]
            if hasattr(tensor, "__tensor_flatten__")
            else [tensor]
        )
        flat = [
            part.dequantize()
            if hasattr(part, "dequantize") and type(part) is not type(tensor)
            else part
            for part in parts
        ]
        content = b"".join(
            part.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes() for part in flat
        )
        found[name] = hashlib.sha256(content).hexdigest()
    return found


def decodes(model: Any) -> None:
    """It is left as it was by LLM(), and says what `generate` says; True is refused."""
    before = sums(model)
    llm = LLM(model, "prompt_lookup", max_batch=2)
    assert sums(model) == before
    with pytest.raises(ConfigError, match="batch_invariant: got True"):
        LLM(model, "none", batch_invariant=True)
    assert sums(model) == before
    outs = llm.generate(PROMPTS, SamplingParams(max_new_tokens=12, ignore_eos=True))
    assert not any(out.stats.batch_invariant for out in outs)
    for prompt, out in zip(PROMPTS, outs, strict=True):
        ids = model.generate(
            torch.tensor([prompt]),
            max_new_tokens=12,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
        assert out.token_ids == ids[0, len(prompt) :].tolist()


def test_bitsandbytes_of_four_bits(folder: Path) -> None:
    pytest.importorskip("bitsandbytes")
    decodes(
        load(
            folder,
            BitsAndBytesConfig(
                load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.float32
            ),
        )
    )


@pytest.mark.parametrize("weights", ["int8", "int4", "float8"])
def test_quanto(folder: Path, weights: str) -> None:
    pytest.importorskip("optimum.quanto")
    decodes(load(folder, QuantoConfig(weights=weights)))


@pytest.mark.parametrize(
    "name", ["Int8WeightOnlyConfig", "Float8WeightOnlyConfig", "IntxWeightOnlyConfig"]
)
def test_torchao(folder: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    quantization = pytest.importorskip("torchao.quantization")
    # as a model of 34 million weights and more
    monkeypatch.setattr("paceline.cpu.product_choice.MIN_TIMED_WEIGHTS", 0)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    quantization.quantize_(model, getattr(quantization, name)())
    decodes(model)


def test_torchao_with_dynamic_activations(folder: Path) -> None:
    quantization = pytest.importorskip("torchao.quantization")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    quantization.quantize_(model, quantization.Int8DynamicActivationInt8WeightConfig())
    with pytest.raises(UnsupportedModelError, match="quantises its activations while it runs"):
        LLM(model, "none")


def packed(folder: Path, dynamic: bool) -> Any:
    """The model as compressed-tensors loads it: 4-bit weights, or FP8 weights and activations."""
    tensors = pytest.importorskip("compressed_tensors.quantization")
    compressors = pytest.importorskip("compressed_tensors.compressors")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    weights = (
        {"num_bits": 8, "type": "float", "strategy": "channel"}
        if dynamic
        else {"num_bits": 4, "strategy": "group", "group_size": 32}
    )
    group: dict[str, Any] = {"targets": ["Linear"], "weights": {"symmetric": True, **weights}}
    if dynamic:
        group["input_activations"] = {
            "num_bits": 8,
            "type": "float",
            "strategy": "token",
            "dynamic": True,
        }
    kind = "float-quantized" if dynamic else "pack-quantized"
    config = tensors.QuantizationConfig(
        config_groups={"group_0": group}, ignore=["lm_head"], format=kind
    )
    tensors.apply_quantization_config(model, config)
    for module in model.modules():
        if hasattr(module, "quantization_scheme"):
            size = weights.get("group_size", module.in_features)
            largest = 448.0 if dynamic else 7.0
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


@pytest.mark.parametrize("used_before", [True, False])
def test_compressed_tensors_of_four_bits(folder: Path, used_before: bool) -> None:
    model = packed(folder, False)
    if used_before:  # it unpacks its weights in the first forward
        model(torch.tensor([[1, 2]]))
    decodes(model)


def test_compressed_tensors_with_dynamic_activations(folder: Path) -> None:
    model = packed(folder, True)
    for one in (model, copy.deepcopy(model)):
        with pytest.raises(UnsupportedModelError, match="quantises its activations while it runs"):
            LLM(one, "none")
