"""Whether a model quantises its activations while it runs, and whether its weights are quantised.

Configuration, modules and weights show it by their names and classes: the packages that quantise
need not be installed. Quantised weights alone are the same numbers in every forward, so such a
model is decoded as it is. Only kernels and proofs that read or replace weights must leave it alone.
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

from paceline.cpu.linear.own import is_free
from paceline.cpu.plain_tensors import is_plain

# Methods of transformers whose products see quantised activations, always, or from so many rows on.
_METHODS = {"bitnet", "fbgemm_fp8", "fouroversix", "fp_quant", "mxfp8", "nvfp4"}
# bitsandbytes' LLM.int8(), whose outliers are looked for in all rows at once, and the modules of
# the methods.
_MODULES = {
    "Linear8bitLt",
    "BitLinear",
    "AutoBitLinear",
    "CompressedTensorsFP8Linear",
    "FbgemmFp8Linear",
    "FPQuantLinear",
    "NVFP4Linear",
}
_BY_NAME = re.compile(r"\w*dynamic_?activation\w*", re.IGNORECASE)  # how torchao calls its ways
# torchao's; its newer ones have one of these attributes
_TENSORS = {"LinearActivationQuantizedTensor"}
_TENSOR_ATTRIBUTES = ("act_quant_kwargs", "activation_quantization")
# Settings of compressed-tensors and quark for numbers that exist only while the model runs.
_RUNNING = {
    **{name: name for name in ("input_activations", "output_activations", "kv_cache_scheme")},
    "input_tensors": "input_activations",
    "output_tensors": "output_activations",
}
_SCHEME = "quantization_scheme"  # what compressed-tensors gives each module
_NOT_PACKED = {torch.bool, torch.int64}  # masks and positions


def dynamic_activations(model: PreTrainedModel) -> str | None:
    """Return what quantises a model's activations while it runs, in a few words; None where
    nothing is known to.
    """
    found = _by_config(getattr(model.config, "quantization_config", None))
    return found or next(
        (words for module in model.modules() if (words := _by_module(module))), None
    )


def _by_config(config: Any) -> str | None:
    """Look at a `quantization_config`: a mapping, or an object of transformers."""
    if config is None:
        return None
    settings: Mapping[str, Any] = config if isinstance(config, Mapping) else vars(config)
    method = str(getattr(settings.get("quant_method"), "value", settings.get("quant_method")))
    if settings.get("dequantize"):  # when it was loaded
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
    """Yield which numbers compressed-tensors and quark quantise dynamically, however deep the
    settings stand.

    Args:
        settings: mappings, lists and objects with attributes, as of pydantic, in any nesting.
        seen: ids of those that were looked at.
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
    """Return the names and values of a mapping, or of an object that holds settings; none of
    anything else.
    """
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
    """Return which weights of a model are no plain tensors in modules of torch's own kind, as a
    clause; None where all are.

    Such a model is decoded by its own code alone, in the mode in which `generate` runs it.
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
    """Whether numbers of a dtype mean something else than themselves: they have scales, or are
    several in one.
    """
    if dtype.is_floating_point:
        return dtype.itemsize < 2
    return not dtype.is_complex and dtype not in _NOT_PACKED


def _name_of(one: object) -> str:
    return f"{type(one).__module__}.{type(one).__name__}"
