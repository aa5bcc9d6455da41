"""Tiny models changed as quantisation libraries change them.

Each mechanism is reproduced separately, without the library.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterator, MutableMapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from tests.support.models import make


class Packed(Tensor):
    """Integer weight in a tensor subclass without memory (torchao, quanto)."""

    numbers: Tensor
    scales: Tensor
    normal_mode_alone = False

    @staticmethod
    def __new__(cls, numbers: Tensor, scales: Tensor, dtype: torch.dtype) -> Packed:
        made: Packed = Tensor._make_wrapper_subclass(cls, numbers.shape, dtype=dtype)
        return made

    def __init__(self, numbers: Tensor, scales: Tensor, dtype: torch.dtype) -> None:
        self.numbers, self.scales = numbers, scales

    @classmethod
    def of(cls, weight: Tensor) -> Packed:
        scales = weight.float().abs().amax(1, keepdim=True) / 127
        return cls((weight.float() / scales).round().to(torch.int8), scales, weight.dtype)

    def unpacked(self) -> Tensor:
        return (self.numbers * self.scales).to(self.dtype)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, function: Any, types: Any, given: Any = (), named: Any = None
    ) -> Any:
        if function is torch.ops.aten.detach.default:
            return cls(given[0].numbers, given[0].scales, given[0].dtype)
        if cls.normal_mode_alone and torch.is_inference_mode_enabled():
            raise RuntimeError("Cannot set version_counter for inference tensor")
        if function not in (
            torch.ops.aten.t.default,
            torch.ops.aten.mm.default,
            torch.ops.aten.addmm.default,
        ):
            raise NotImplementedError(f"{function} of packed weights")
        if function is torch.ops.aten.t.default:
            return given[0].unpacked().t()
        return function(
            *tree_map(lambda one: one.unpacked() if isinstance(one, Packed) else one, given)
        )


class NormalModePacked(Packed):
    """Packed weight that cannot be used in inference mode (quanto with 4 bits)."""

    normal_mode_alone = True


class WritingThrough(MutableMapping[str, Any]):
    """Parameter mapping that writes to the real parameters, as in compressed-tensors."""

    def __init__(self, held: dict[str, Any]) -> None:
        self.held = held

    def __getitem__(self, name: str) -> Any:
        return self.held[name]

    def __setitem__(self, name: str, value: Any) -> None:
        self.held[name].data.copy_(value)

    def __delitem__(self, name: str) -> None:
        raise TypeError("parameters cannot be taken away")

    def __iter__(self) -> Iterator[str]:
        return iter(self.held)

    def __len__(self) -> int:
        return len(self.held)


class OwnError(Exception):
    """Exception type that no library shares."""


class ShapeLimitedLinear(nn.Linear):
    """Linear layer that fails for shapes that no decoder step has, as in bitsandbytes."""

    error: type[Exception] = AssertionError
    counts = frozenset((1024, 257, 33))  # numbers of rows that no forward of the tests has

    def forward(self, input: Tensor) -> Tensor:
        if input.numel() // input.shape[-1] in self.counts:
            raise self.error
        return super().forward(input)


class ShapeLimitedLinearOwnError(ShapeLimitedLinear):
    error = OwnError


class ShapeLimitedLinearRuntimeError(ShapeLimitedLinear):
    error = RuntimeError


class Int4Linear(nn.Module):
    """Linear layer with two integers in each byte of a buffer (GPTQ, AWQ)."""

    qweight: Tensor
    scales: Tensor

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        scales = weight.abs().amax(1, keepdim=True) / 7
        whole = ((weight / scales).round() + 8).to(torch.uint8)
        self.register_buffer("qweight", whole[:, ::2] | whole[:, 1::2] << 4)
        self.register_buffer("scales", scales)

    def forward(self, hidden: Tensor) -> Tensor:
        whole = torch.stack((self.qweight & 15, self.qweight >> 4), dim=-1).flatten(1)
        return nn.functional.linear(hidden, ((whole.float() - 8) * self.scales).to(hidden.dtype))


def quantised(kind: str, dtype: torch.dtype = torch.float32) -> Any:
    """Return a tiny Llama with all layer weights changed; `KINDS` lists the changes."""
    model = copy.deepcopy(make("llama", "sdpa")).to(dtype)
    for layer in model.model.layers:
        for part in (layer.self_attn, layer.mlp):
            for name, one in [*part.named_children()]:
                if type(one) is nn.Linear:
                    setattr(part, name, _changed(kind, one))
    return model


def _changed(kind: str, one: nn.Linear) -> nn.Module:
    weight = one.weight.detach()
    if kind in _PACKED:
        one.weight = nn.Parameter(_PACKED[kind].of(weight), requires_grad=False)
    elif kind == "writing through":
        vars(one)["_parameters"] = WritingThrough(one._parameters)
    elif kind == "forward replaced":
        one.forward = functools.partial(_scaled, one)  # type: ignore[method-assign]
    elif kind == "integers in buffers":
        return Int4Linear(weight)
    elif kind == "float8":
        one.weight = nn.Parameter(weight.to(torch.float8_e4m3fn), requires_grad=False)
        one.forward = functools.partial(_scaled, one)  # type: ignore[method-assign]
    else:
        one.__class__ = _PICKY[kind]
    return one


def _scaled(module: nn.Linear, hidden: Tensor) -> Tensor:
    return nn.functional.linear(hidden, module.weight.to(hidden.dtype) * 0.5)


_PACKED: dict[str, type[Packed]] = {
    "a tensor subclass": Packed,
    "normal mode alone": NormalModePacked,
}
_PICKY: dict[str, type[ShapeLimitedLinear]] = {
    "an AssertionError": ShapeLimitedLinear,
    "an error of its own": ShapeLimitedLinearOwnError,
    "a RuntimeError": ShapeLimitedLinearRuntimeError,
}
FOREIGN = (*_PACKED, "writing through", "forward replaced", "integers in buffers", "float8")
KINDS = (*FOREIGN, *_PICKY)
