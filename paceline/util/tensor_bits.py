"""View the numbers of a tensor as integers, to compare or add their bits."""

from __future__ import annotations

import torch
from torch import Tensor

_INTEGERS = {
    dtype.itemsize: dtype for dtype in (torch.uint8, torch.int16, torch.int32, torch.int64)
}


def as_integers(tensor: Tensor, width: int) -> Tensor:
    """View a contiguous tensor as integers of `width` bytes: 1, 2, 4 or 8."""
    return tensor.view(_INTEGERS[width])
