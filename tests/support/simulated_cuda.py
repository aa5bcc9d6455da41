"""Simulated CUDA device: tensors on `CUDA` whose numbers are on the CPU.

`cuda_operations` runs operations on them. Torch modes apply to one thread, so run everything in
the same one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from paceline.attention import fixed
from paceline.backend import plain_tensors, resolve
from tests.support.cuda_operations import CUDA, CudaTensor, Operations, is_simulated
from tests.support.cuda_stubs import cuda_stubs
from tests.support.traffic import Traffic

__all__ = ["CUDA", "CudaTensor", "moved", "simulated_cuda"]


class _Lists(TorchFunctionMode):
    """Mode for conversions of lists, which never reach a dispatch mode."""

    def __init__(self, traffic: Traffic) -> None:
        super().__init__()
        self._traffic = traffic

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name == "tolist" and isinstance(args[0], CudaTensor):
            return args[0].cpu().tolist()
        if name in ("__getitem__", "__setitem__") and isinstance(args[0], CudaTensor):
            args = (args[0], self._index(args[1]), *args[2:])
        if name == "new_tensor" and isinstance(args[0], CudaTensor):
            return self._made(args[0].beneath.new_tensor(*args[1:], **kwargs), name)
        lists = func in (torch.tensor, torch.as_tensor) and not isinstance(args[0], CudaTensor)
        if lists and is_simulated(kwargs.get("device")):
            return self._made(func(*args, **{**kwargs, "device": "cpu"}), name)
        if name == "pin_memory":
            return args[0]
        return func(*args, **{**kwargs, "pin_memory": False} if "pin_memory" in kwargs else kwargs)

    def _index(self, index: Any) -> Any:
        """Return an index with lists replaced by simulated tensors."""
        if isinstance(index, tuple):
            return tuple(map(self._index, index))
        if isinstance(index, list | np.ndarray):
            dtype = None if len(index) else torch.long
            return self._made(torch.as_tensor(index, dtype=dtype), "index by a list")
        return index

    def _made(self, tensor: Tensor, name: str) -> CudaTensor:
        self._traffic.upload(tensor, name, waits=True)
        return CudaTensor(tensor)


def moved(model: Any) -> Any:
    """Move weights and buffers of a model to the device; tied ones stay tied."""
    known: dict[int, nn.Parameter] = {}
    for module in model.modules():
        for name, weight in list(module._parameters.items()):
            if weight is not None and not isinstance(weight, CudaTensor):
                made = nn.Parameter(CudaTensor(weight.detach()), requires_grad=weight.requires_grad)
                module._parameters[name] = known.setdefault(id(weight), made)
        for name, buffer in list(module._buffers.items()):
            if buffer is not None and not isinstance(buffer, CudaTensor):
                module._buffers[name] = CudaTensor(buffer)
    return model


class _Generator(torch.Generator):
    """Stub for device generators, backed by a CPU generator."""

    def __new__(cls, device: Any = "cpu") -> _Generator:
        there = "cpu" if is_simulated(device) else device
        made: _Generator = super().__new__(cls, there)  # type: ignore[call-arg]
        return made


@contextmanager
def simulated_cuda() -> Iterator[Traffic]:
    """Make `CUDA` available within the context; yield the log of its traffic."""
    traffic = Traffic()
    operations = Operations(traffic)
    # The package must treat these tensors as torch's own. Triton only compiles for real devices.
    plain = plain_tensors.PLAIN | {CudaTensor}
    with ExitStack() as stack:
        for name, stub in cuda_stubs(traffic, operations).items():
            stack.enter_context(patch.object(torch.cuda, name, stub))
        stack.enter_context(patch.object(torch, "Generator", _Generator))
        stack.enter_context(patch.object(plain_tensors, "PLAIN", plain))
        for module in (fixed, resolve):
            stack.enter_context(patch.object(module, "has_triton", lambda: False))
        stack.enter_context(_Lists(traffic))
        stack.enter_context(operations)
        yield traffic
