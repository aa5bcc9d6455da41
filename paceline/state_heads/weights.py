"""Interpret the weights in the files of EAGLE-3 and DFlash heads."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from paceline.backend.plain_tensors import is_plain
from paceline.errors import UnsupportedModelError
from paceline.model.settings import MAX_FLOAT32_DRAFT_PARAMETERS

# Tensors that do not belong to a head's module: vocabulary maps, and copies of target weights.
TARGET_PARTS = frozenset(
    ("d2t", "t2d", "embed_tokens.weight", "verifier_norm.weight", "verifier_lm_head.weight")
)


def own_token_ids(tensors: dict[str, Tensor], vocab_size: int) -> Tensor | None:
    """Return the target's token id for each row of a draft head's own LM head.

    Args:
        tensors: Weights of the draft head. If present, the tensor `d2t` contains one number per
            row: the target's token id minus the row index.
        vocab_size: Number of rows in the target's LM head.
    Returns:
        Token ids, int64 [rows]. None if `d2t` is missing; row i then belongs to token i.
    Raises:
        ValueError: A token id is outside the target's vocabulary.
    """
    offsets = tensors.get("d2t")
    if offsets is None:
        return None
    token_ids = torch.arange(len(offsets)) + offsets.long()
    if len(token_ids) and not 0 <= int(token_ids.min()) <= int(token_ids.max()) < vocab_size:
        raise ValueError(
            f"token ids up to {int(token_ids.max())}, but the target has {vocab_size} tokens"
        )
    return token_ids


def vocabulary_rows(target: PreTrainedModel) -> int:
    """Return the number of rows in a target's LM head, according to its configuration."""
    return int(target.config.get_text_config(decoder=True).vocab_size)


def plain_weight(source: str, module: Any, name: str) -> Tensor:
    """Return the weight of a target module that a draft head also uses.

    Args:
        source: Name of the draft head in error messages.
        module: Embedding or LM head of the target.
        name: Name of the module in error messages.
    Raises:
        UnsupportedModelError: The module is quantised, or has no floating-point weight.
    """
    weight = getattr(module, "weight", None)
    if weight is None or not is_plain(weight) or not weight.is_floating_point():
        raise UnsupportedModelError(
            f"state head {source!r}: got a head that shares the target's {name}, which is not a"
            " plain weight; expected a head with its own. Choose another head or drafter."
        )
    return cast(Tensor, weight.detach())


def dtype_of(module: nn.Module, target: PreTrainedModel) -> torch.dtype:
    """Return the dtype for running a head.

    A small head on a CPU runs in float32. Any other head runs in the dtype of the target.

    Args:
        module: Module of the head.
        target: The model that verifies the drafts.
    """
    size = sum(weight.numel() for weight in module.parameters())
    is_small = target.device.type == "cpu" and size <= MAX_FLOAT32_DRAFT_PARAMETERS
    return torch.float32 if is_small else cast(torch.dtype, target.dtype)
