"""Simulated CUDA tensors and the operations on them.

Each tensor wraps a CPU tensor. To torch, the wrapper is on the meta device, which every build has;
Python sees `cuda:0`. A dispatch mode runs every operation on the wrapped tensors. It raises where
CUDA would, such as for tensors of two devices in one operation. It also logs what makes the host
wait for the device, and what is copied to or from it.
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

# On CUDA, the host waits for these: the device determines the size of their result or an error.
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
# Torch describes these as compositions, but CUDA runs each of them with kernels for the whole.
_WHOLE = ("aten::linear", "aten::matmul", "aten::scaled_dot_product_attention")


class CudaTensor(Tensor):
    """Simulated CUDA tensor; `beneath` is the CPU tensor with its numbers."""

    beneath: Tensor
    device = property(lambda self: CUDA)
    is_cuda = property(lambda self: True)
    is_meta = property(lambda self: False)
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, beneath: Tensor) -> CudaTensor:
        """Wrap a CPU tensor."""
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
        """Run an operation outside the mode, as other threads do, without logging."""
        return Operations(Traffic()).run(func, args, kwargs or {})

    def __repr__(self, **options: Any) -> str:  # type: ignore[override]
        return f"CudaTensor({self.beneath!r})"


def leaves(value: Any) -> Iterator[Any]:
    """Return all values in the nested arguments of an operation."""
    if isinstance(value, tuple | list):
        for one in value:
            yield from leaves(one)
    else:
        yield value


def _beneath(value: Any) -> Any:
    """Return arguments with each simulated tensor replaced by its CPU tensor."""
    if isinstance(value, CudaTensor):
        return value.beneath
    return type(value)(map(_beneath, value)) if isinstance(value, tuple | list) else value


def _on_device(value: Any, known: dict[int, CudaTensor]) -> Any:
    """Return the result of an operation as simulated tensors.

    Args:
        value: Result of the operation on the CPU tensors.
        known: Simulated arguments of the operation, by the id of their CPU tensor.
    """
    if isinstance(value, Tensor):
        return known[id(value)] if id(value) in known else CudaTensor(value)
    if isinstance(value, tuple | list):
        return type(value)(_on_device(one, known) for one in value)
    return value


def is_simulated(device: Any) -> bool:
    return device is not None and torch.device(device).type in (CUDA.type, _SHELL.type)


class Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Dispatch mode that runs every operation.

    Args:
        traffic: Log of waits and copies.

    Attributes:
        captured: While a graph is captured, the operations on CPU tensors with arguments and
            results.
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
        return self.run(func, args, kwargs or {})

    def run(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Run an operation, on the wrapped tensors if any of them is simulated."""
        name = func._schema.name
        operands = [*leaves(args), *kwargs.values()]
        tensors = [one for one in operands if isinstance(one, Tensor)]
        there = [one for one in tensors if isinstance(one, CudaTensor)]
        device = next((one for one in operands if isinstance(one, torch.device)), None)
        if not there and not is_simulated(device):
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
        result = func(*args, **kwargs)
        if self.captured is not None:
            self.captured.append((func, args, kwargs, result))
        elif not _is_view(func, args, result):
            self._traffic.launches += 1
        return result

    def _check_devices(self, name: str, args: Any, tensors: list[Tensor]) -> None:
        """Raise if CPU tensors take part that are neither scalars nor indices."""
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
        """Copy to, from or within the device."""
        (tensor,), device = args, kwargs.get("device")
        goes = isinstance(tensor, CudaTensor) if device is None else is_simulated(device)
        options = {**kwargs, "device": "cpu", "pin_memory": None, "non_blocking": False}
        copied = self._execute(func, [_beneath(tensor)], options)
        waits = not kwargs.get("non_blocking")
        if not isinstance(tensor, CudaTensor):
            self._traffic.upload(tensor, "copy to the device", waits)
        elif not goes:
            self._traffic.download(tensor, "copy from the device", waits)
        elif copied.dtype == tensor.dtype and device is not None:
            return tensor  # torch repeats the copy, since the wrapper is on the meta device
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
        """Replace an attention kernel that only CUDA has."""
        query, key, value, bias = map(_beneath, args[:4])
        options = {"attn_mask": bias, "scale": kwargs.get("scale")}
        output = self._execute(scaled_dot_product_attention, [query, key, value], options)
        empty = CudaTensor(torch.empty(0))
        return CudaTensor(output), empty, empty, empty


def _is_view(func: Any, args: Any, result: Any) -> bool:
    """Return whether an operation only returns views of its arguments, without a launch."""
    schema = getattr(func, "_schema", None)
    if schema is not None and schema.is_mutable:
        return False
    owned, found = (
        {one.untyped_storage().data_ptr() for one in leaves(each) if isinstance(one, Tensor)}
        for each in (args, result)
    )
    return bool(found) and found <= owned


def _is_composed(func: Any) -> bool:
    composed: bool = torch._C._dispatch_has_kernel_for_dispatch_key(
        func.name(), "CompositeImplicitAutograd"
    )
    return composed
