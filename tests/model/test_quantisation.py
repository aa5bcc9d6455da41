"""Models that quantise their activations while they run are refused; those whose weights alone are
quantised are not.

The quantisers are not installed: configurations are as they write them, classes have their names.
"""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from transformers import BitsAndBytesConfig

from paceline import LLM, SamplingParams
from paceline.errors import UnsupportedModelError
from paceline.integrations.transformers import Strategy
from tests.support.models import make

FEW = SamplingParams(max_new_tokens=3)
BITS_AND_BYTES = {"quant_method": "bitsandbytes", "llm_int8_threshold": 6.0}
GROUP = {"weights": {"num_bits": 8}, "targets": ["Linear"]}
DYNAMIC: dict[str, Any] = {
    "bitsandbytes, load_in_8bit": {**BITS_AND_BYTES, "load_in_8bit": True},
    "torchao, Int8DynamicActivationInt8WeightConfig": {
        "quant_method": "torchao",
        "quant_type": {"default": {"_type": "Int8DynamicActivationInt8WeightConfig"}},
    },
    "torchao, int8_dynamic_activation_int4_weight": {
        "quant_method": "torchao", "quant_type": "int8_dynamic_activation_int4_weight",
    },
    "compressed-tensors, dynamic input_activations": {
        "quant_method": "compressed-tensors", "config_groups": {"0": {**GROUP,
        "input_activations": {"dynamic": True}}},
    },
    "quark, dynamic input_activations": {
        "quant_method": "quark", "global_quant_config": {"input_tensors": {"is_dynamic": True},
        "weight": {}},
    },
    "fp8, activation_scheme 'dynamic'": {"quant_method": "fp8", "activation_scheme": "dynamic"},
    "fbgemm_fp8": {"quant_method": "fbgemm_fp8"},
    "bitnet": {"quant_method": "bitnet"},
    "auto-round, act_dynamic": {"quant_method": "auto-round", "bits": 4, "act_bits": 8,
    "act_dynamic": True},
}  # fmt: skip
WEIGHTS_ALONE: dict[str, Any] = {
    "bitsandbytes": {**BITS_AND_BYTES, "load_in_8bit": False, "load_in_4bit": True},
    "torchao": {"quant_method": "torchao",
    "quant_type": {"default": {"_type": "Int4WeightOnlyConfig"}}},
    "compressed-tensors": {"quant_method": "compressed-tensors", "config_groups": {"0": {**GROUP,
    "input_activations": None}}},
    "static": {"quant_method": "compressed-tensors", "config_groups": {"0": {**GROUP,
    "input_activations": {"dynamic": False}}}},
    "fp8": {"quant_method": "fp8", "activation_scheme": "static"},
    "fp8, unpacked": {"quant_method": "fp8", "activation_scheme": "dynamic", "dequantize": True},
    "gptq": {"quant_method": "gptq", "bits": 4, "group_size": 128},
    "auto-round": {"quant_method": "auto-round", "bits": 4, "act_bits": 16, "act_dynamic": True},
}  # fmt: skip


class Linear8bitLt(nn.Linear):
    """Called as bitsandbytes' module."""


class Linear4bit(nn.Linear):
    """Called as bitsandbytes' module."""


class FP8Linear(nn.Linear):
    """Called as the module of transformers for DeepSeek's format."""

    activation_scheme = "dynamic"


class StaticLinear(FP8Linear):
    activation_scheme = "static"


StaticLinear.__name__ = "FP8Linear"


class Int8Tensor(nn.Parameter):
    """Called as torchao's weight."""

    act_quant_kwargs: Any = None


def refused(model: Any, words: str) -> None:
    for use in (lambda: LLM(model, "none"), lambda: _with_strategy(model)):
        with pytest.raises(UnsupportedModelError) as error:
            use()
        assert f"quantises its activations while it runs ({words}" in str(error.value)
        assert "Load the model without dynamic quantisation" in str(error.value)


def answers(model: Any) -> None:
    expected = (
        make("llama")
        .generate(torch.tensor([[1, 5, 9]]), max_new_tokens=3, do_sample=False)[0, 3:]
        .tolist()
    )
    assert (
        LLM(model, "none", batch_invariant=False).generate([[1, 5, 9]], FEW)[0].token_ids
        == expected
    )
    assert _with_strategy(model) == expected


def _with_strategy(model: Any) -> list[int]:
    strategy = Strategy(batch_invariant=False)
    ids = model.generate(
        torch.tensor([[1, 5, 9]]), max_new_tokens=3, do_sample=False, custom_generate=strategy
    )
    return list(ids[0, 3:].tolist())


def with_config(config: Any) -> Any:
    model = copy.copy(make("llama"))
    model.config = copy.deepcopy(model.config)
    model.config.quantization_config = config
    return model


def with_module(kind: type[nn.Linear], weight: type[nn.Parameter] = nn.Parameter) -> Any:
    """The model, one product of which is another class's; its numbers are the same."""
    model = copy.deepcopy(make("llama"))
    layer = model.model.layers[1].mlp
    given = layer.down_proj.weight
    layer.down_proj = kind(given.shape[1], given.shape[0], bias=False)
    layer.down_proj.weight = weight(given.detach())
    return model


@pytest.mark.parametrize("words", DYNAMIC)
def test_configurations_that_quantise_activations_are_refused(words: str) -> None:
    refused(with_config(DYNAMIC[words]), words)


@pytest.mark.parametrize("name", WEIGHTS_ALONE)
def test_configurations_of_weights_alone_are_not(name: str) -> None:
    answers(with_config(WEIGHTS_ALONE[name]))


def test_configurations_that_are_objects() -> None:
    refused(with_config(BitsAndBytesConfig(load_in_8bit=True)), "bitsandbytes, load_in_8bit)")
    answers(with_config(BitsAndBytesConfig()))
    method = SimpleNamespace(value="torchao")
    kinds = (
        SimpleNamespace(group=1),
        type("Float8DynamicActivationFloat8WeightConfig", (SimpleNamespace,), {})(group=1),
    )
    config = SimpleNamespace(quant_method=method, to_dict=dict)
    answers(with_config(SimpleNamespace(**vars(config), quant_type=kinds[0])))
    refused(
        with_config(SimpleNamespace(**vars(config), quant_type=kinds[1])),
        "torchao, Float8DynamicActivationFloat8WeightConfig)",
    )


class Settings:
    """Settings in attributes, as pydantic's models hold them; they may refer to one another."""

    def __init__(self, **fields: Any) -> None:
        vars(self).update(fields)


@pytest.mark.parametrize("dynamic", [True, "local"])
def test_configurations_of_nested_objects(dynamic: Any) -> None:
    """As of compressed-tensors: a wrapper of transformers around objects in lists and mappings."""

    def config(named: str, dynamic: Any) -> Settings:
        schemes = {
            "group_0": Settings(
                targets=["Linear"],
                weights=Settings(num_bits=8, dynamic=False),
                **{named: Settings(dynamic=dynamic)},
            )
        }
        inner = Settings(config_groups=schemes, kv_cache_scheme=None, status=BitsAndBytesConfig)
        inner.outer = Settings(inner=inner)  # type: ignore[attr-defined]
        return Settings(quant_method="compressed-tensors", quantization_config=inner, to_dict=dict)

    for named in ("input_activations", "output_activations"):
        refused(with_config(config(named, dynamic)), f"compressed-tensors, dynamic {named})")
        answers(with_config(config(named, False)))
    cached = Settings(
        quant_method="compressed-tensors",
        all=[{"kv_cache_scheme": Settings(dynamic=True)}],
        to_dict=dict,
    )
    refused(with_config(cached), "compressed-tensors, dynamic kv_cache_scheme)")


def test_modules_that_have_a_scheme() -> None:
    """compressed-tensors gives each module one, also where the configuration says nothing."""
    model = with_module(nn.Linear)
    down = model.model.layers[1].mlp.down_proj
    down.quantization_scheme = Settings(weights=Settings(dynamic=False), input_activations=None)
    answers(model)
    down.quantization_scheme.input_activations = Settings(dynamic=True)
    refused(model, "torch.nn.modules.linear.Linear, dynamic input_activations)")


@pytest.mark.parametrize("kind", [Linear8bitLt, FP8Linear])
def test_modules_that_quantise_activations_are_refused(kind: type[nn.Linear]) -> None:
    refused(with_module(kind), f"{__name__}.{kind.__name__})")


@pytest.mark.parametrize("kind", [Linear4bit, StaticLinear])
def test_modules_of_weights_alone_are_not(kind: type[nn.Linear]) -> None:
    answers(with_module(kind))


def test_weights_tell_it(monkeypatch: pytest.MonkeyPatch) -> None:
    answers(with_module(nn.Linear, Int8Tensor))
    monkeypatch.setattr(Int8Tensor, "act_quant_kwargs", {"granularity": "row"})
    refused(with_module(nn.Linear, Int8Tensor), f"weights of {__name__}.Int8Tensor)")
    monkeypatch.setattr(Int8Tensor, "act_quant_kwargs", None)
    monkeypatch.setattr(Int8Tensor, "activation_quantization", "int8_asym_per_token", raising=False)
    refused(with_module(nn.Linear, Int8Tensor), f"weights of {__name__}.Int8Tensor)")


@pytest.mark.filterwarnings("ignore")
def test_torchs_own_dynamic_quantisation_is_refused() -> None:
    quantize: Any = torch.ao.quantization.quantize_dynamic
    refused(
        quantize(copy.deepcopy(make("llama")), {nn.Linear}, dtype=torch.qint8),
        "torch.ao.nn.quantized.dynamic",
    )
