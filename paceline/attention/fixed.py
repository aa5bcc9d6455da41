"""Register an attention function for batches of fixed shape with transformers.

On CUDA with Triton, a kernel reads text lengths and draft trees from device memory. Otherwise, SDPA
uses a mask that is computed once per forward pass.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from paceline.attention.forward import attention_state
from paceline.attention.sdpa import UNUSUAL
from paceline.backend.attention_metadata import mask_address
from paceline.backend.resolve import has_triton
from paceline.errors import UnsupportedModelError

BY_FIXED_SHAPE = "paceline_fixed"  # name in transformers' table of attention functions


def takes_trees(device: str) -> bool:
    """Return whether a Triton kernel can read `TreeVisibility` on this device."""
    return device == "cuda" and has_triton()


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
    """Compute masked attention, with the signature that transformers requires.

    Args:
        query: Queries, [batch, heads, columns, dim]. `key` and `value` are [batch, key heads,
            positions, dim].
        attention_mask: Mask [batch, 1, query heads per key head * columns, positions]; or a
            placeholder mask whose address is a key in `AttentionState.trees`.
    Returns:
        Output, [batch, columns, heads, dim], and None for the weights.
    Raises:
        UnsupportedModelError: The model passes an option that this attention does not support.
    """
    batch, heads, columns, dim = query.shape
    rows = heads // key.shape[1] * columns
    given = [name for name in UNUSUAL if options.get(name) is not None]
    trees = attention_state(module).trees
    if not (dropout or given or attention_mask is None) and trees:
        tree = trees[mask_address(attention_mask)]
        from paceline.attention.tree_kernel import attention_over_tree

        return attention_over_tree(query, key, value, tree, scaling), None
    if dropout or given or attention_mask is None or attention_mask.shape[2] != rows:
        raise UnsupportedModelError(
            f"{type(module).__name__}: attention in fixed shapes got"
            f" {', '.join(given) or 'dropout or another mask'}. Set fixed_shapes to false."
        )
    grouped = query.reshape(batch, key.shape[1], rows, dim)
    output = scaled_dot_product_attention(
        grouped, key, value, attn_mask=attention_mask, scale=scaling
    )
    return output.reshape(batch, heads, columns, -1).transpose(1, 2).contiguous(), None


AttentionInterface.register(BY_FIXED_SHAPE, _attend)
AttentionMaskInterface.register(BY_FIXED_SHAPE, sdpa_mask)
