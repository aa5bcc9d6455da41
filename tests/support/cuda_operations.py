"""Tensors of a CUDA device that is not there, and operations on them.

Each tensor is one of the CPU in a shell. For torch, the shell lies on the meta device, which every
build has; Python sees `cuda:0`. A mode runs every operation on the tensors beneath, raises where
CUDA would (tensors of two devices in one operation), and logs what makes the host wait for the
device and what is copied to or from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from torch.utils._python_dispatch import TorchDispatchMode

from tests.support.traffic import Traffic

CUDA = torch.device("cuda:0")
_SHELL = torch.device("meta")

# On CUDA, the size of their result comes from the device, or their error does.
_WAITING = frozenset(
    f"aten::{name}"
    for name in (
        "nonzero",
        "masked_select",
        "bincount",
        "equal",
        "is_nonzero",
        "_unique2",
        "unique_dim",
        "unique_consecutive",
        "repeat_interleave",
        "_linalg_check_errors",
        "_linalg_solve_ex",
    )
)
_INDEXING = ("aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_")
# Operations of one kernel or more that torch describes as compositions of others.
_WHOLE = ("aten::linear", "aten::matmul", "aten::scaled_dot_product_attention")


class CudaTensor(Tensor):
    """A tensor on the device; `beneath` holds its numbers."""

    beneath: Tensor
    device = property(lambda self: CUDA)
    is_cuda = property(lambda self: True)
    is_meta = property(lambda self: False)
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, beneath: Tensor) -> CudaTensor:
        """Wrap a tensor of the CPU."""
        with torch.inference_mode(beneath.is_inference()):
            made: CudaTensor = torch.Tensor._make_wrapper_subclass(
                cls,
                beneath.shape,
                strides=beneath.stride(),
                storage_offset=beneath.storage_offset(),
                dtype=beneath.dtype,
                device=_SHELL,
            )
        made.beneath = beneath
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        """Run an operation outside the mode, as other threads do: nothing is logged."""
        return Operations(Traffic()).run(func, args, kwargs or {})

    def __repr__(self, **options: Any) -> str:  # type: ignore[override]
        """Show the numbers beneath."""
        return f"CudaTensor({self.beneath!r})"


def leaves(value: Any) -> Iterator[Any]:
    """Return what arguments of an operation consist of."""
    if isinstance(value, tuple | list):
        for one in value:
            yield from leaves(one)
    else:
        yield value


def _beneath(value: Any) -> Any:
    """Return arguments of an operation with the tensors beneath."""
    if isinstance(value, CudaTensor):
        return value.beneath
    return type(value)(map(_beneath, value)) if isinstance(value, tuple | list) else value


def _on_device(value: Any, known: dict[int, CudaTensor]) -> Any:
    """Return the result of an operation with tensors of the device.

    Args:
        value: Result of the operation on the tensors beneath.
        known: Arguments of the operation, by the id of the tensor beneath.
    """
    if isinstance(value, Tensor):
        return known[id(value)] if id(value) in known else CudaTensor(value)
    if isinstance(value, tuple | list):
        return type(value)(_on_device(one, known) for one in value)
    return value


def is_there(device: Any) -> bool:
    return device is not None and torch.device(device).type in (CUDA.type, _SHELL.type)


class Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Mode that runs every operation.

    Args:
        traffic: Log of waits and copies.
    Attributes:
        captured: Receives operations on the tensors beneath, their arguments and results, while a
            graph is captured.
    """

    def __init__(self, traffic: Traffic) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.captured: list[tuple[Any, Any, dict[str, Any], Any]] | None = None
        self._traffic = traffic
        self._special: dict[str, Callable[[Any, Any, dict[str, Any]], Any]] = {
            "aten::_to_copy": self._convert,
            "aten::copy_": self._overwrite,
            "aten::_local_scalar_dense": self._number,
            "aten::_scaled_dot_product_efficient_attention": self._attend_with_bias,
        }

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation."""
        return self.run(func, args, kwargs or {})

    def run(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Run an operation on what lies beneath, if it is the device's."""
        name = func._schema.name
        operands = [*leaves(args), *kwargs.values()]
        tensors = [one for one in operands if isinstance(one, Tensor)]
        there = [one for one in tensors if isinstance(one, CudaTensor)]
        device = next((one for one in operands if isinstance(one, torch.device)), None)
        if not there and not is_there(device):
            return func(*args, **kwargs)
        if name not in _WHOLE and _is_composed(func):
            with self:
                result = func.decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result
        if name in self._special:
            return self._special[name](func, args, kwargs)
        if there:
            self._check_devices(name, args, tensors)
        if name in _WAITING:
            self._traffic.wait(name)
        if name in _INDEXING:
            self._log_index(name, args[1])
        inner = {key: _beneath(value) for key, value in kwargs.items()}
        if device is not None:
            inner |= {"device": "cpu", "pin_memory": None}
        result = self._execute(func, _beneath(args), inner)
        return _on_device(result, {id(one.beneath): one for one in there})

    def _execute(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Run an operation on tensors of the CPU."""
        result = func(*args, **kwargs)
        if self.captured is not None:
            self.captured.append((func, args, kwargs, result))
        return result

    def _check_devices(self, name: str, args: Any, tensors: list[Tensor]) -> None:
        """Raise if tensors of the CPU take part that are no numbers, and no indices."""
        indices = {id(one) for one in args[1] if one is not None} if name in _INDEXING else set()
        for one in tensors:
            assert isinstance(one, CudaTensor) or not one.is_meta, f"{name}: lost its numbers"
            if not isinstance(one, CudaTensor) and one.dim() and id(one) not in indices:
                raise RuntimeError(
                    f"{name}: expected all tensors to be on the same device, got {CUDA} and cpu"
                    f" at {self._traffic.caller()}"
                )

    def _log_index(self, name: str, indices: Any) -> None:
        for index in indices:
            if index is not None and index.dtype in (torch.bool, torch.uint8):
                self._traffic.wait(f"{name} by a mask")
            if index is not None and not isinstance(index, CudaTensor):
                self._traffic.upload(index, f"{name} by an index of the CPU", waits=True)

    def _convert(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Copy to, from or on the device."""
        (tensor,), device = args, kwargs.get("device")
        goes = isinstance(tensor, CudaTensor) if device is None else is_there(device)
        options = {**kwargs, "device": "cpu", "pin_memory": None, "non_blocking": False}
        copied = self._execute(func, [_beneath(tensor)], options)
        waits = not kwargs.get("non_blocking")
        if not isinstance(tensor, CudaTensor):
            self._traffic.upload(tensor, "copy to the device", waits)
        elif not goes:
            self._traffic.download(tensor, "copy from the device", waits)
        elif copied.dtype == tensor.dtype and device is not None:
            return tensor  # torch sees a shell on another device than the one that was asked for
        return CudaTensor(copied) if goes else copied

    def _overwrite(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        target, source = args[:2]
        waits = not (kwargs.get("non_blocking") or (len(args) > 2 and args[2]))
        self._execute(func, [_beneath(target), _beneath(source)], {})
        if isinstance(target, CudaTensor) and not isinstance(source, CudaTensor):
            self._traffic.upload(source, "copy into a tensor of the device", waits)
        elif isinstance(source, CudaTensor) and not isinstance(target, CudaTensor):
            self._traffic.download(source, "copy into a tensor of the CPU", waits)
        return target

    def _number(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        self._traffic.download(args[0], "number", waits=True)
        return func(args[0].beneath)

    def _attend_with_bias(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Stand in for a kernel that only CUDA has."""
        query, key, value, bias = map(_beneath, args[:4])
        options = {"attn_mask": bias, "scale": kwargs.get("scale")}
        output = self._execute(scaled_dot_product_attention, [query, key, value], options)
        nothing = CudaTensor(torch.empty(0))
        return CudaTensor(output), nothing, nothing, nothing


def _is_composed(func: Any) -> bool:
    composed: bool = torch._C._dispatch_has_kernel_for_dispatch_key(
        func.name(), "CompositeImplicitAutograd"
    )
    return composed
