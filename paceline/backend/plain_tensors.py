"""Decide which tensors compiled code can read directly from memory.

These are plain torch tensors, whose layout is fully described by dtype, shape and strides.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from paceline.backend.packed_tensor import PackedTensor
from paceline.backend.packed_weight import PackedWeight

# Subclasses, such as quantised weights, may store their values in any layout.
PLAIN = frozenset((Tensor, nn.Parameter))

# Classes of the weights that backends multiply with.
MULTIPLIED = PLAIN | {PackedWeight}


def has_numbers(tensor: Any) -> bool:
    """Return whether a weight is a plain or packed tensor, which paceline can read."""
    return isinstance(tensor, PackedTensor) or is_plain(tensor)


def is_matrix(weight: Tensor) -> bool:
    """Return whether a weight may be a factor of a matrix product.

    A vector is not a matrix, even if it has additional axes of size 1.
    """
    return weight.dim() == 2 or sum(size > 1 for size in weight.shape) > 1


def is_plain(tensor: Any) -> bool:
    """Return whether a tensor's values can be read at its memory address.

    Args:
        tensor: Any object. If it is not a tensor, the result is False.
    """
    return (
        type(tensor) in PLAIN
        and tensor.layout is torch.strided
        and not tensor.is_meta
        and not tensor.is_quantized
        and not tensor.is_neg()
        and not tensor.is_conj()
        and tensor.untyped_storage().nbytes()
        >= tensor.numel() * tensor.element_size()  # the memory of a sharded tensor may be freed
    )
