"""Detect quantised weights, and activations that are quantised at run time.

The names and classes of the configuration, modules and weights reveal quantisation, so the
quantising packages need not be installed. A model in which only the weights are quantised uses the
same values in every forward pass, so paceline decodes it unchanged. Only kernels and probes that
read or replace weights must skip such a model.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from paceline.backend.plain_tensors import is_plain
from paceline.backend.products import is_free

# Methods in transformers that quantise activations, always or above some number of rows.
_METHODS = {"bitnet", "fbgemm_fp8", "fouroversix", "fp_quant", "mxfp8", "nvfp4"}
# bitsandbytes' LLM.int8(), which searches for outliers in all rows at once, and the modules used by
# the methods above.
_MODULES = {
    "Linear8bitLt",
    "BitLinear",
    "AutoBitLinear",
    "CompressedTensorsFP8Linear",
    "FbgemmFp8Linear",
    "FPQuantLinear",
    "NVFP4Linear",
}
_BY_NAME = re.compile(r"\w*dynamic_?activation\w*", re.IGNORECASE)  # torchao's quantisation types
# torchao's tensor classes. Newer classes have one of the attributes below.
_TENSORS = {"LinearActivationQuantizedTensor"}
_TENSOR_ATTRIBUTES = ("act_quant_kwargs", "activation_quantization")
# compressed-tensors and quark settings for tensors that exist only while the model runs.
_RUNNING = {
    **{name: name for name in ("input_activations", "output_activations", "kv_cache_scheme")},
    "input_tensors": "input_activations",
    "output_tensors": "output_activations",
}
_SCHEME = "quantization_scheme"  # attribute that compressed-tensors gives each module
_NOT_PACKED = {torch.bool, torch.int64}  # masks and positions


def dynamic_activations(model: PreTrainedModel) -> str | None:
    """Return a short description of how a model quantises activations at run time.

    None means that no such quantisation was found.
    """
    from_config = _by_config(getattr(model.config, "quantization_config", None))
    return from_config or next(
        (words for module in model.modules() if (words := _by_module(module))), None
    )


def _by_config(config: Any) -> str | None:
    """Return how a `quantization_config` quantises activations; None if it does not."""
    if config is None:
        return None
    settings: Mapping[str, Any] = config if isinstance(config, Mapping) else vars(config)
    method = str(getattr(settings.get("quant_method"), "value", settings.get("quant_method")))
    if settings.get("dequantize"):  # the weights were dequantised when loaded
        return None
    if settings.get("load_in_8bit") or settings.get("_load_in_8bit"):
        return f"{method}, load_in_8bit"
    if kind := _BY_NAME.search(str(settings.get("quant_type"))):
        return f"{method}, {kind[0]}"
    if method == "fp8" and settings.get("activation_scheme", "dynamic") == "dynamic":
        return f"{method}, activation_scheme 'dynamic'"
    if settings.get("act_dynamic") and (settings.get("act_bits") or 16) < 16:
        return f"{method}, act_dynamic"
    if method in _METHODS:
        return method
    named = next(_dynamic_names(settings, set()), None)
    return f"{method}, dynamic {named}" if named else None


def _dynamic_names(settings: Any, seen: set[int]) -> Iterator[str]:
    """Yield the tensors that compressed-tensors and quark quantise dynamically.

    Args:
        settings: Mappings, lists and objects with attributes, such as pydantic models, nested in
            any way.
        seen: Ids of the objects visited so far.
    """
    if isinstance(settings, list | tuple):
        for value in settings:
            yield from _dynamic_names(value, seen)
    fields = _fields_of(settings)
    if not fields or id(settings) in seen:
        return
    seen.add(id(settings))
    for name, value in fields.items():
        group = _fields_of(value)
        if name in _RUNNING and (group.get("dynamic") or group.get("is_dynamic")):
            yield _RUNNING[name]
        yield from _dynamic_names(value, seen)


def _fields_of(settings: Any) -> Mapping[str, Any]:
    """Return the names and values in a mapping or a settings object, else nothing."""
    if isinstance(settings, Mapping):
        return settings
    plain_object = not isinstance(settings, type | Enum | Tensor | nn.Module)
    return getattr(settings, "__dict__", {}) if plain_object else {}


def _by_module(module: nn.Module) -> str | None:
    kind, weight = type(module), module._parameters.get("weight")
    if (
        "quantized.dynamic" in kind.__module__  # torch's own
        or kind.__name__ in _MODULES
        or (
            kind.__name__ == "FP8Linear"
            and getattr(module, "activation_scheme", "dynamic") == "dynamic"
        )
    ):
        return f"{kind.__module__}.{kind.__name__}"
    if type(weight).__name__ in _TENSORS or any(
        getattr(weight, name, None) is not None for name in _TENSOR_ATTRIBUTES
    ):
        return f"weights of {type(weight).__module__}.{type(weight).__name__}"
    named = next(_dynamic_names(vars(module).get(_SCHEME), set()), None)
    return f"{kind.__module__}.{kind.__name__}, dynamic {named}" if named else None


def foreign_weights(model: PreTrainedModel) -> str | None:
    """Return a clause naming weights that are not plain tensors in torch's modules.

    The model's own code decodes such a model, in the mode in which `generate` runs it. None means
    that all weights are plain.
    """
    return next(
        (
            f"{name}.{words}"
            for name, module in model.named_modules()
            if (words := _foreign(module))
        ),
        None,
    )


def _foreign(module: nn.Module) -> str:
    for where, held in (("_parameters", module._parameters), ("_buffers", module._buffers)):
        if type(held) is not dict:
            return f"{where} is a {_name_of(held)}"
        for name, tensor in held.items():
            if tensor is None or tensor.is_meta:
                continue
            if not is_plain(tensor):
                return f"{name} is a {_name_of(tensor)}"
            is_weight = held is module._parameters or not module._modules
            if is_weight and tensor.dim() > 1 and _is_packed(tensor.dtype):
                return f"{name} holds {str(tensor.dtype).removeprefix('torch.')}"
    is_product = isinstance(module, nn.Linear | Conv1D)
    return "forward is not that of its class" if is_product and not is_free(module) else ""


def _is_packed(dtype: torch.dtype) -> bool:
    """Return whether a dtype's elements need scales or hold several values."""
    if dtype.is_floating_point:
        return dtype.itemsize < 2
    return not dtype.is_complex and dtype not in _NOT_PACKED


def _name_of(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__name__}"
