"""Which tensors compiled code can read in place.

They are of torch's own class, and their numbers lie in memory as dtype, shape and strides say.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

# a subclass, as of quantised weights, has its numbers anywhere
PLAIN = frozenset((Tensor, nn.Parameter))


def is_plain(tensor: Any) -> bool:
    """Return whether the address of a tensor is where its numbers are.

    Args:
        tensor: anything; None is not plain.
    """
    return (
        type(tensor) in PLAIN
        and tensor.layout is torch.strided
        and not tensor.is_meta
        and not tensor.is_quantized
        and not tensor.is_neg()
        and not tensor.is_conj()
        and tensor.untyped_storage().nbytes()
        >= tensor.numel() * tensor.element_size()  # a sharded one may be freed
    )
