"""Register paceline's attention kernels with transformers, named "paceline".

In paceline's own forward passes, the registered function also receives the order of the keys
(`AttentionState`). The function also works in `model.generate`, for a model loaded with
`AutoModelForCausalLM.from_pretrained(..., attn_implementation="paceline")`. The order of summation
does not depend on batch, padding, cache or prompt chunks.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from paceline.attention.forward import BY_POSITION, attention_state
from paceline.backend.attention_metadata import AttentionMetadata
from paceline.backend.interface import ScoreOptions
from paceline.backend.plain_tensors import PLAIN
from paceline.backend.resolve import cpu_backend
from paceline.errors import UnsupportedModelError, install_command

_DEVICES = {"cpu", "cuda"}
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def why_not_by_position(model: PreTrainedModel) -> str | None:
    """Return why a model cannot use paceline's attention kernels; None if it can."""
    devices = {parameter.device.type for parameter in model.parameters()}
    if len(devices) > 1 or devices - _DEVICES:
        return (
            f"it is on {', '.join(sorted(devices))}, but batch-invariant attention runs only on"
            " a CPU or on CUDA"
        )
    if devices == {"cuda"} and find_spec("triton") is None:
        return (
            "it is on cuda, where batch-invariant attention needs triton, which is not installed;"
            f" {install_command('cuda')}"
        )
    if model.dtype not in _DTYPES:
        return (
            f"its data type is {model.dtype}, but batch-invariant attention supports only"
            f" {', '.join(map(str, _DTYPES))}"
        )
    if not model._can_set_attn_implementation():
        return "it has its own attention code, which does not use transformers' attention functions"
    return None


def _attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    position_bias: Tensor | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Compute attention, summing in text order; transformers defines the signature.

    Args:
        query: Queries, [batch, heads, columns, dim].
        key, value: Keys and values, [batch, key heads, positions, dim].
        attention_mask: Mask, bool [batch, 1, columns, positions].
        softcap: Soft limit on the scores, or None.
        s_aux: Attention sinks, [heads], or None.
        position_bias: Numbers added to the scaled scores, [batch or 1, heads, columns,
            positions], or None.
    Returns:
        Output, [batch, columns, heads, dim], and None for the weights.
    Raises:
        UnsupportedModelError: The kernel does not support an option or a tensor.
    """
    options["position_bias"] = position_bias
    obstacle = _foreign(query, key, value, s_aux) or _obstacle(
        module, query, key, attention_mask, dropout, options
    )
    if obstacle is not None:
        raise UnsupportedModelError(
            f"{type(module).__name__}: batch-invariant attention got {obstacle}. Use the model's"
            " own attention implementation."
        )
    metadata = attention_state(module).metadata
    if metadata is None:
        metadata = AttentionMetadata.in_order(query.shape[0], key.shape[2])
    if len(metadata.key_rows) > len(key) and any(
        states.stride(0) != states.stride(2) for states in (key, value)
    ):
        raise UnsupportedModelError(
            f"{type(module).__name__}: batch-invariant attention got keys or values that are"
            " not those of the cache, whose slots differ in length. Pass \0batch_invariant=False\0."
        )
    scores = ScoreOptions(scaling, softcap, s_aux, position_bias)
    attend = _attention_of(query.device.type)
    return attend(query, key, value, attention_mask, metadata, scores), None


@cache
def _attention_of(device: str) -> Callable[..., Tensor]:
    """Import the attention kernel for a device, and return its function."""
    if device == "cpu":
        return cpu_backend().attention
    from paceline.attention.triton_kernel import attention_by_position

    return attention_by_position


def _foreign(query: Tensor, key: Tensor, value: Tensor, sinks: Tensor | None) -> str | None:
    """Return why the kernel cannot read the tensors; None if it can."""
    if not type(query) is type(key) is type(value) is Tensor or not (
        sinks is None or type(sinks) in PLAIN
    ):
        kinds = ", ".join(
            type(tensor).__name__ for tensor in (query, key, value, sinks) if tensor is not None
        )
        return f"tensors of the classes {kinds}; expected plain ones"
    if key.dtype != query.dtype or value.dtype != query.dtype:
        return (
            f"queries, keys and values in {query.dtype}, {key.dtype} and {value.dtype}; expected"
            " one dtype"
        )
    return None


def _obstacle(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    mask: Tensor | None,
    dropout: float,
    options: dict[str, Any],
) -> str | None:
    """Describe the first option or tensor that the kernel does not support, if any."""
    if query.device.type not in _DEVICES or query.dtype not in _DTYPES:
        return (
            f"{query.dtype} on {query.device.type}; expected one of {', '.join(map(str, _DTYPES))}"
            " on the CPU or on CUDA"
        )
    if torch.is_grad_enabled() and query.requires_grad:
        return "a forward pass with gradients; expected torch.no_grad() or torch.inference_mode()"
    if dropout:
        return f"dropout {dropout}; expected none"
    if options.get("cache") is not None:
        return "cache; expected none"
    bias = options["position_bias"]
    if bias is not None and query.device.type != "cpu":
        return f"position_bias on {query.device.type}; expected one on the CPU"
    if bias is not None and bias.shape[1:] != (*query.shape[1:3], key.shape[2]):
        return (
            f"position_bias {list(bias.shape)}; expected [batch, {query.shape[1]},"
            f" {query.shape[2]}, {key.shape[2]}]"
        )
    if mask is None:
        causal = options.get("is_causal")
        return (
            None
            if (getattr(module, "is_causal", True) if causal is None else causal)
            else "no mask; expected a causal model"
        )
    if mask.dtype != torch.bool or mask.shape[1:] != (1, query.shape[2], key.shape[2]):
        return (
            f"a mask {mask.dtype} {list(mask.shape)}; expected torch.bool [batch, 1,"
            f" {query.shape[2]}, {key.shape[2]}]"
        )
    return None


AttentionInterface.register(BY_POSITION, _attend)
AttentionMaskInterface.register(BY_POSITION, sdpa_mask)
