"""Register attention with a ready additive mask with transformers.

Forward passes of fixed shapes use it. The mask is made once per forward pass, with one row for each
query head of a group, so that a layer adds no operation to it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from paceline.attention.sdpa import UNUSUAL
from paceline.errors import UnsupportedModelError

BY_FIXED_SHAPE = "paceline_fixed"  # name in transformers' table of attention functions

_ALIGNED_DIM = 8  # multiple of head sizes that the memory-efficient kernel reads


def _attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Attend with an additive mask, with the signature of transformers' functions.

    Args:
        query: [batch, heads, columns, dim]; key, value: [batch, key heads, positions, dim].
        attention_mask: [batch, 1, heads per key head * columns, positions].
    Returns:
        [batch, columns, heads, dim], and no weights.
    Raises:
        UnsupportedModelError: The model passes an option that this attention does not have.
    """
    batch, heads, columns, dim = query.shape
    rows = heads // key.shape[1] * columns
    given = [name for name in UNUSUAL if options.get(name) is not None]
    if dropout or given or attention_mask is None or attention_mask.shape[2] != rows:
        raise UnsupportedModelError(
            f"{type(module).__name__}: attention in fixed shapes got"
            f" {', '.join(given) or 'dropout or another mask'}. Set fixed_shapes to false."
        )
    grouped = query.reshape(batch, key.shape[1], rows, dim)
    output = _attention(grouped, key, value, attention_mask, scaling)
    return output.reshape(batch, heads, columns, -1).transpose(1, 2).contiguous(), None


def _attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scaling: float | None
) -> Tensor:
    """Return attention, on CUDA by the memory-efficient kernel where it takes the head size."""
    if query.device.type != "cuda" or (query.shape[-1] | value.shape[-1]) % _ALIGNED_DIM:
        return scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scaling)
    bias = mask.expand(-1, query.shape[1], -1, -1)
    output: Tensor = torch.ops.aten._scaled_dot_product_efficient_attention(
        query, key, value, bias, False, scale=scaling
    )[0]
    return output


AttentionInterface.register(BY_FIXED_SHAPE, _attend)
AttentionMaskInterface.register(BY_FIXED_SHAPE, sdpa_mask)
