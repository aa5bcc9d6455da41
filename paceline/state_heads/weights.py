"""Interpret the weights in the files of a head."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from paceline.model.settings import MAX_FLOAT32_DRAFT_PARAMETERS

# Tensors that a head's module does not hold: maps of the vocabularies, and parts of the target.
TARGET_PARTS = frozenset(
    ("d2t", "t2d", "embed_tokens.weight", "verifier_norm.weight", "verifier_lm_head.weight")
)


def own_token_ids(tensors: dict[str, Tensor], vocab_size: int) -> Tensor | None:
    """Return the target's token id for each row of a head's LM head.

    Args:
        tensors: Weights, in which `d2t` holds the difference of the two ids, if any.
        vocab_size: Number of rows in the target's LM head.
    Returns:
        int64 [rows]; None if row i is token i.
    Raises:
        ValueError: An id is beyond the target's vocabulary.
    """
    offsets = tensors.get("d2t")
    if offsets is None:
        return None
    token_ids = torch.arange(len(offsets)) + offsets.long()
    if len(token_ids) and not 0 <= int(token_ids.min()) <= int(token_ids.max()) < vocab_size:
        raise ValueError(f"token ids up to {int(token_ids.max())}, of {vocab_size} in the target")
    return token_ids


def dtype_of(module: nn.Module, embedding: Tensor) -> torch.dtype:
    """Return the dtype in which a head runs: float32 if it is small and on a CPU.

    Args:
        module: The head.
        embedding: The target's embedding.
    """
    size = sum(weight.numel() for weight in module.parameters())
    is_small = embedding.device.type == "cpu" and size <= MAX_FLOAT32_DRAFT_PARAMETERS
    return torch.float32 if is_small else embedding.dtype
