"""Register SDPA-based attention over draft trees with transformers.

When the model verifies a draft tree, attention has a mask and several queries. In this case,
transformers' SDPA function copies each key and value for every query head in a group. The function
of this module instead treats the query heads of a group as rows of one matrix product. The cache is
therefore read only once. For the prompt tokens before a tree, the function uses causal attention
without a mask. Both changes affect only the order of summation.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, cat, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from paceline.attention.forward import BY_SDPA, GroupedMasks, attention_state

# Options that some models pass, and that these attention functions do not support.
UNUSUAL = ("softcap", "position_bias", "cache", "output_attentions")


def takes_tree_attention(model: PreTrainedModel) -> bool:
    """Return whether a model looks up its SDPA function in transformers' registry."""
    return bool(
        model.config._attn_implementation == "sdpa" and model._can_set_attn_implementation()
    )


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
    """Compute attention with SDPA, with the signature that transformers requires.

    Args:
        query: Queries, [batch, heads, columns, dim]. `key` and `value` are [batch, key heads,
            positions, dim].
        attention_mask: Mask, bool [batch, 1, columns, positions].
    Returns:
        The output, [batch, columns, heads, dim], and None instead of the attention weights.
    """
    if (
        attention_mask is None
        or attention_mask.shape[1] != 1
        or dropout
        or any(options.get(name) is not None for name in UNUSUAL)
    ):
        result: tuple[Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **options
        )
        return result
    state = attention_state(module)
    causal = state.num_causal
    parts = []
    if causal:
        front = query[:, :, :causal], key[:, :, :causal], value[:, :, :causal]
        parts.append(
            scaled_dot_product_attention(*front, scale=scaling, is_causal=True, enable_gqa=True)
        )
    if causal < query.shape[2]:
        masks: GroupedMasks = {} if state.grouped is None else state.grouped
        groups = query.shape[1] // key.shape[1]
        mask = _grouped_mask(masks, attention_mask[:, :, causal:], groups, query.dtype)
        parts.append(_grouped(query[:, :, causal:], key, value, mask, scaling))
    output = parts[0] if len(parts) == 1 else cat(parts, dim=2)
    return output.transpose(1, 2).contiguous(), None


def _grouped_mask(masks: GroupedMasks, mask: Tensor, groups: int, dtype: torch.dtype) -> Tensor:
    """Return the additive mask for all query heads of a key head.

    The function computes this mask once per forward pass. Given a Boolean mask, SDPA would
    compute the additive mask again in every layer.

    Args:
        masks: Masks computed so far in this forward pass; the function adds each new mask.
        mask: Boolean mask, [batch, 1, columns, positions].
        groups: Number of query heads per key head.
        dtype: Data type of the queries.
    """
    key = mask.data_ptr(), mask.shape[2], groups
    if key not in masks:
        hidden = mask.repeat(1, 1, groups, 1).logical_not_()
        additive = torch.zeros(hidden.shape, dtype=dtype, device=mask.device)
        # The stored mask keeps its memory, so no other mask of the pass gets its address.
        masks[key] = mask, additive.masked_fill_(hidden, -math.inf)
    return masks[key][1]


def _grouped(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scaling: float | None
) -> Tensor:
    """Compute attention with one matrix product per key head.

    The rows of the product are the queries of all query heads that share the key head.

    Args:
        query, key, value, scaling: As in `_attend`.
        mask: Result of `_grouped_mask`.
    Returns:
        Output, [batch, heads, columns, dim].
    """
    batch, heads, columns, dim = query.shape
    groups = heads // key.shape[1]
    rows = query.reshape(batch, key.shape[1], groups * columns, dim)
    output = scaled_dot_product_attention(rows, key, value, attn_mask=mask, scale=scaling)
    return output.reshape(batch, heads, columns, value.shape[-1])


AttentionInterface.register(BY_SDPA, _attend)
AttentionMaskInterface.register(BY_SDPA, sdpa_mask)
