"""Read the scaling of rotary frequencies from GGUF files.

transformers reads only the base frequency. Without the scaling, the logits would differ from those
of the original checkpoint, especially in long texts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from paceline.model import gguf
from paceline.model.gguf_directory import ROPE_VECTORS

_TYPE, _NONE = "rope.scaling.type", "none"
_FACTOR, _ORIGINAL = "rope.scaling.factor", "rope.scaling.original_context_length"
# Options of transformers, by the name in the header.
_NUMBERS = {
    _FACTOR: "factor",
    _ORIGINAL: "original_max_position_embeddings",
    "rope.scaling.yarn_beta_fast": "beta_fast",
    "rope.scaling.yarn_beta_slow": "beta_slow",
    # llama.cpp's converter writes the original checkpoint's value; llama.cpp ignores it.
    "rope.scaling.yarn_attn_factor": "attention_factor",
}
_ATTENTION, _LOG = "rope.scaling.attn_factor", "rope.scaling.yarn_log_multiplier"
_FACTORS, _LONG, _SHORT = ROPE_VECTORS
# Llama 3.1 and later use these values in every published model; only the factor differs.
_LLAMA3 = {
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
_INFINITE = 1e29  # factors of at least this size disable the rotation
_TOLERANCE = 1e-3  # of frequency factors, which converters compute in float32

# Returns the numbers of a tensor in the file, or None if the file lacks the tensor.
ReadVector = Callable[[str], NDArray[np.float32] | None]


def set_rope_scaling(config: Any, metadata: Mapping[str, Any], read: ReadVector) -> None:
    """Set the rotary scaling of a configuration to that of a GGUF file.

    Args:
        config: Configuration as transformers reads it from the header.
        metadata: Metadata in the header.
        read: Function that reads a vector from the file.
    Raises:
        UnsupportedContent: transformers does not support the scaling in the file.
    """
    rope_parameters = getattr(config, "rope_parameters", None)
    if not rope_parameters:
        return
    # Layers with a sliding window use unscaled frequencies.
    parameters = rope_parameters.get("full_attention", rope_parameters)
    long, short, factors = read(_LONG), read(_SHORT), read(_FACTORS)
    kind = parameters.get("rope_type", "default")
    if kind == "proportional" and factors is not None:
        _set_proportional(parameters, factors)
    if kind != "default":
        return
    header = gguf.architecture_values(metadata)
    kind = str(header.get(_TYPE, "linear"))  # as in llama.cpp
    if long is not None and short is not None:
        _set_longrope(config, parameters, header, (long, short))
    elif header.get(_ATTENTION, 1.0) != 1.0 and kind != "yarn":
        raise gguf.UnsupportedContent(f"an attention factor with rotary scaling {kind!r}")
    elif factors is not None and parameters is rope_parameters:
        _set_llama3(config, parameters, factors)
    elif kind == "yarn":
        parameters |= {"rope_type": kind} | _yarn_options(header)
    elif kind == "linear" and header.get(_FACTOR, 1.0) != 1.0:
        parameters |= {"rope_type": kind, "factor": header[_FACTOR]}
    elif kind not in (_NONE, "linear", "longrope"):
        raise gguf.UnsupportedContent(f"rotary scaling {kind!r}")


def _set_proportional(parameters: dict[str, Any], factors: NDArray[np.float32]) -> None:
    """Set the fraction of each head's dimensions that is rotated, as in Gemma 4.

    Raises:
        UnsupportedContent: The factors also scale frequencies.
    """
    rotated = factors == 1.0
    if not np.all(rotated | (factors >= _INFINITE)):
        raise gguf.UnsupportedContent(
            "rotary frequency factors in a model that rotates only a part of each head"
        )
    parameters["partial_rotary_factor"] = float(rotated.mean())


def _yarn_options(header: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of YaRN.

    Raises:
        UnsupportedContent: The header contains a log multiplier, but not its counterpart `mscale`.
    """
    if header.get(_LOG):
        raise gguf.UnsupportedContent("a YaRN log multiplier")
    options = {name: header[key] for key, name in _NUMBERS.items() if key in header}
    multiple = header.get(_ATTENTION, 1.0)  # of YaRN's own attention factor, as in llama.cpp
    if multiple != 1.0:
        default = 1.0 + 0.1 * math.log(max(1.0, header[_FACTOR]))
        options["attention_factor"] = multiple * options.get("attention_factor", default)
    return options


def _set_longrope(
    config: Any,
    parameters: dict[str, Any],
    header: Mapping[str, Any],
    factors: tuple[NDArray[np.float32], NDArray[np.float32]],
) -> None:
    """Set separate frequency factors for long and short texts (LongRoPE), as in Phi-3."""
    long, short = (values.tolist() for values in factors)
    original = int(header[_ORIGINAL])
    if hasattr(config, "original_max_position_embeddings"):
        config.original_max_position_embeddings = original
    parameters |= {
        "rope_type": "longrope",
        "long_factor": long,
        "short_factor": short,
        "original_max_position_embeddings": original,
    }
    attention_factor = header.get(_ATTENTION)
    if attention_factor is not None:
        parameters["attention_factor"] = attention_factor


def _set_llama3(config: Any, parameters: dict[str, Any], factors: NDArray[np.float32]) -> None:
    """Set the rotary scaling of Llama 3.1 to match the frequency factors in a file.

    Raises:
        UnsupportedContent: The factors are not those of Llama 3.1 or a later model.
    """
    if np.all(factors == 1.0):
        return
    unscaled = dict(parameters)
    parameters |= {"rope_type": "llama3", "factor": float(factors.max())} | _LLAMA3
    frequencies, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
    size = 2 * len(frequencies)
    exponents = np.arange(0, size, 2, dtype=np.float32) / size
    expected = parameters["rope_theta"] ** -exponents / frequencies.numpy()
    if expected.shape != factors.shape or not np.allclose(expected, factors, rtol=_TOLERANCE):
        parameters.clear()
        parameters.update(unscaled)
        raise gguf.UnsupportedContent("rotary frequency factors other than those of Llama 3.1")
