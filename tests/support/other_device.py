"""A device that is not there: tensors that say they are on `OTHER`, with real numbers beneath.

They refuse to meet tensors of the CPU. As on CUDA, one of these may only be an index, a scalar, or
what is copied to or from the device.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

OTHER = torch.device("meta")  # the one device without memory that every build of torch has
_INDEXES = ("aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_")
_COPIES = ("aten::copy_", "aten::_to_copy")


class OtherTensor(Tensor):
    """A tensor on that device."""

    beneath: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, inner: Tensor) -> OtherTensor:
        """Wrap a tensor of the CPU."""
        made: OtherTensor = torch.Tensor._make_wrapper_subclass(
            cls,
            inner.shape,
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=OTHER,
        )
        made.beneath = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        """Run an operation on what lies beneath."""
        return _run(func, args, kwargs or {})


def _run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    name = func._schema.name
    tensors = [one for one in tree_flatten((args, kwargs))[0] if isinstance(one, Tensor)]
    others = [one for one in tensors if isinstance(one, OtherTensor)]
    device = kwargs.get("device")
    there = device == OTHER if device is not None else bool(others)
    if name not in _COPIES and others:
        indexes = {id(one) for one in args[1] if one is not None} if name in _INDEXES else set()
        mixed = [
            one
            for one in tensors
            if not isinstance(one, OtherTensor) and one.dim() and id(one) not in indexes
        ]
        if mixed:
            raise RuntimeError(
                f"{name}: expected all tensors to be on the same device, got {OTHER} and cpu"
            )
    inner_args, inner_kwargs = tree_map(
        lambda one: one.beneath if isinstance(one, OtherTensor) else one, (args, kwargs)
    )
    if device is not None:
        inner_kwargs["device"] = "cpu"
    if inner_kwargs.get("pin_memory") is not None:
        inner_kwargs.pop("pin_memory")
    found = func(*inner_args, **inner_kwargs)
    if name.endswith("_") or "out" in kwargs:
        return args[0] if name.endswith("_") else kwargs["out"]
    if not there or name == "aten::_local_scalar_dense":
        return found
    if name == "aten::_to_copy" and device is None and not others:
        return found
    return tree_map(lambda one: OtherTensor(one) if isinstance(one, Tensor) else one, found)


class _Other(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """What `other_device` begins."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation, on the CPU or beneath."""
        return _run(func, args, kwargs or {})


def other_device() -> AbstractContextManager[Any]:
    """Make `OTHER` a device with memory, within the context."""
    made: AbstractContextManager[Any] = _Other()  # type: ignore[no-untyped-call]
    return made


def moved(model: nn.Module) -> nn.Module:
    """Put the weights and buffers of a model there, in place; tied ones stay so."""
    there: dict[int, nn.Parameter] = {}
    for module in model.modules():
        for name, weight in list(module._parameters.items()):
            if weight is not None and not isinstance(weight, OtherTensor):
                made = nn.Parameter(
                    OtherTensor(weight.detach()), requires_grad=weight.requires_grad
                )
                module._parameters[name] = there.setdefault(id(weight), made)
        for name, buffer in list(module._buffers.items()):
            if buffer is not None and not isinstance(buffer, OtherTensor):
                module._buffers[name] = OtherTensor(buffer)
    return model
