"""Copy arrays to and from a device, with one transfer in each direction.

A copy from a device waits for all work that was launched earlier, so a step should make as few such
copies as possible. These functions transfer all arrays as one tensor. On a CPU, they copy nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_ALIGNMENT = 8  # bytes; torch requires the offset of an 8-byte number to be a multiple of 8
Arrays = Sequence[NDArray[Any]]


class Pending(NamedTuple):
    """Work whose result depends on tensors that are still on a device.

    Attributes:
        tensors: Tensors to copy to the CPU; see `fetch` for the allowed dtypes.
        finish: Function that computes the result from the copied arrays.
    """

    tensors: Sequence[Tensor]
    finish: Callable[[Arrays], Any]


def upload(device: torch.device, *values: NDArray[Any] | Sequence[int]) -> list[Tensor]:
    """Copy arrays to a device without waiting for the device.

    Args:
        device: Device to copy to.
        values: Writable arrays of numbers, or sequences of integers, which become int64. On a CPU,
            the tensors share the memory of the arrays.
    """
    arrays = [
        value if isinstance(value, np.ndarray) else np.array(value, dtype=np.int64)
        for value in values
    ]
    if device.type == "cpu":
        return [torch.from_numpy(array) for array in arrays]
    starts = [0, *accumulate(-(-array.nbytes // _ALIGNMENT) * _ALIGNMENT for array in arrays)]
    packed = np.empty(starts[-1], dtype=np.uint8)
    for array, start in zip(arrays, starts, strict=False):
        packed[start : start + array.nbytes] = (
            np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        )
    there = torch.from_numpy(packed).to(device, non_blocking=True)
    return [
        there[start : start + array.nbytes]
        .view(torch.from_numpy(array[:0]).dtype)
        .view(array.shape)
        for array, start in zip(arrays, starts, strict=False)
    ]


def select_rows(tensor: Tensor, rows: list[int]) -> Tensor:
    """Return rows of a tensor without waiting for its device.

    Args:
        tensor: Tensor [n, ...].
        rows: Indices of the rows. If they are 0 to n - 1, the function returns the tensor itself.
    """
    is_all = rows == list(range(len(tensor)))
    return tensor if is_all else tensor[upload(tensor.device, rows)[0]]


def fetch(*tensors: Tensor) -> list[NDArray[Any]]:
    """Copy tensors from a device to the CPU, waiting for the device only once.

    Args:
        tensors: Tensors of float32, bool, or integers that fit into 32 bits. On a CPU, the arrays
            share the memory of the tensors.
    """
    if all(tensor.device.type == "cpu" for tensor in tensors):
        return [tensor.numpy() for tensor in tensors]
    return unpack(pack(tensors).cpu().numpy(), tensors)


def pack(tensors: Sequence[Tensor]) -> Tensor:
    """Concatenate tensors on a device as 32-bit integers, [n].

    Args:
        tensors: Tensors with the dtypes that `fetch` allows.
    """
    packed = [_words(tensor.reshape(-1)) for tensor in tensors]
    return packed[0] if len(packed) == 1 else torch.cat(packed)


def unpack(words: NDArray[np.int32], tensors: Sequence[Tensor]) -> list[NDArray[Any]]:
    """Restore the arrays from a CPU copy of the tensor that `pack` returned.

    Args:
        words: Copy of the packed tensor.
        tensors: Tensors that were packed. Only their shapes and dtypes are read.
    """
    ends = accumulate((tensor.numel() for tensor in tensors), initial=0)
    return [
        _numbers(words[start:stop], tensor.dtype).reshape(tensor.shape)
        for tensor, (start, stop) in zip(tensors, pairwise(ends), strict=True)
    ]


def finish(pending: Sequence[Pending]) -> list[Any]:
    """Return the results of all pending work, after one transfer for all tensors."""
    arrays = fetch(*(tensor for each in pending for tensor in each.tensors))
    ends = accumulate((len(each.tensors) for each in pending), initial=0)
    return [
        each.finish(arrays[start:stop])
        for each, (start, stop) in zip(pending, pairwise(ends), strict=True)
    ]


def _words(tensor: Tensor) -> Tensor:
    """Convert a tensor [n] to 32-bit integers; floats keep their bit patterns."""
    return tensor.view(torch.int32) if tensor.dtype == torch.float32 else tensor.to(torch.int32)


def _numbers(words: NDArray[np.int32], dtype: torch.dtype) -> NDArray[Any]:
    """Restore a tensor's values from the 32-bit integers that `_words` returned."""
    if dtype == torch.float32:
        return words.view(np.float32)
    return words.astype(torch.empty(0, dtype=dtype).numpy().dtype)
