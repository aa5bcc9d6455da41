"""Whether a model quantises its activations while it runs, read off its configuration, its modules and its weights.

All of it goes by names: the packages that quantise need not be there. Quantised weights alone are no matter: they are the same
numbers in every forward.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from torch import nn
from transformers import PreTrainedModel

# Methods of transformers whose products see quantised activations, always, or from so many rows on.
_METHODS = {"bitnet", "fbgemm_fp8", "fouroversix", "fp_quant", "mxfp8", "nvfp4"}
# bitsandbytes' LLM.int8(), whose outliers are looked for in all rows at once, and the modules of the methods.
_MODULES = {
    "Linear8bitLt", "BitLinear", "AutoBitLinear", "CompressedTensorsFP8Linear", "FbgemmFp8Linear", "FPQuantLinear", "NVFP4Linear",
}  # fmt: skip
_BY_NAME = re.compile(r"\w*dynamic_?activation\w*", re.IGNORECASE)  # how torchao calls its ways
_TENSORS = {"LinearActivationQuantizedTensor"}  # torchao's; its newer ones have `act_quant_kwargs`


def dynamic_activations(model: PreTrainedModel) -> str | None:
    """Return what quantises a model's activations while it runs, in a few words; None where nothing is known to."""
    found = _by_config(getattr(model.config, "quantization_config", None))
    return found or next((words for module in model.modules() if (words := _by_module(module))), None)


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
    dynamic = any(group.get("dynamic") or group.get("is_dynamic") for group in _input_groups(settings))
    return f"{method}, dynamic input_activations" if dynamic else None


def _input_groups(settings: Any) -> Iterator[Mapping[str, Any]]:
    """Yield what compressed-tensors and quark say about the inputs of products, however deep it stands."""
    if isinstance(settings, Mapping):
        for name, value in settings.items():
            if name in ("input_activations", "input_tensors") and isinstance(value, Mapping):
                yield value
            yield from _input_groups(value)


def _by_module(module: nn.Module) -> str | None:
    kind, weight = type(module), module._parameters.get("weight")
    if (
        "quantized.dynamic" in kind.__module__  # torch's own
        or kind.__name__ in _MODULES
        or (kind.__name__ == "FP8Linear" and getattr(module, "activation_scheme", "dynamic") == "dynamic")
    ):
        return f"{kind.__module__}.{kind.__name__}"
    if type(weight).__name__ in _TENSORS or getattr(weight, "act_quant_kwargs", None) is not None:
        return f"weights of {type(weight).__module__}.{type(weight).__name__}"
    return None
