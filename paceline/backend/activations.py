"""Compute activation functions so that an element's position has no effect.

torch divides a tensor among its threads. Each thread computes most of its elements with vector
instructions, and the last few one by one. The two routines round differently, so a token's values
would depend on how many tokens share the forward pass. This module pads the tensor, so that every
thread uses vector instructions only.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from transformers import PreTrainedModel

from paceline.backend.overrides import ForwardOverride, is_free
from paceline.backend.plain_tensors import PLAIN
from paceline.backend.settings import ACTIVATION_GRAIN, VECTOR_ELEMENTS

# Functions of single elements; torch has others, such as softmax, in the same module.
_KINDS = (nn.GELU, nn.Mish, nn.ReLU, nn.Sigmoid, nn.SiLU, nn.Softplus, nn.Tanh)
_MODULE = "transformers.activations"
# Functions that torch rounds differently at the end of a share; others, such as `exp`, are not.
_FUNCTIONS: frozenset[Callable[..., Any]] = frozenset(
    {
        torch.sigmoid,
        Tensor.sigmoid,
        functional.celu,
        functional.elu,
        functional.gelu,
        functional.mish,
        functional.selu,
        functional.silu,
        functional.softplus,
    }
)
FUNCTION_NAMES = frozenset(function.__name__ for function in _FUNCTIONS)
"""Names of the functions that `WholeVectors` computes with vector instructions only."""
DTYPES = torch.float16, torch.float32, torch.float64
"""Dtypes in which the two routines round differently. In bfloat16, their results are the same."""


class ActivationOverride(ForwardOverride):
    """Computes an activation function with vector instructions only."""

    __slots__ = ()

    def __call__(self, inputs: Tensor) -> Tensor:
        """Return the activation of each element."""
        return in_whole_vectors(lambda padded: self._forward(self.module, padded), inputs)


class WholeVectors(TorchFunctionMode):
    """Computes this thread's activation functions with vector instructions only."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run a torch function, with padded inputs if it is an activation function."""
        options = kwargs or {}
        if func not in _FUNCTIONS or not args or not _has_ends(args[0]) or options.get("inplace"):
            return func(*args, **options)
        inputs, *others = args
        with no_replacements():
            return in_whole_vectors(lambda padded: func(padded, *others, **options), inputs)


def whole_vectors(dtype: torch.dtype) -> AbstractContextManager[object]:
    """Return a context in which activation functions use vector instructions only.

    The context affects only this thread.

    Args:
        dtype: Dtype of the functions' inputs.
    """
    return WholeVectors() if dtype in DTYPES else nullcontext()


def no_replacements() -> AbstractContextManager[object]:
    """Return a context in which `WholeVectors` replaces no torch functions.

    Reading a tensor's attribute is also several times faster in this context, because the read
    does not call `WholeVectors`.
    """
    return torch._C.DisableTorchFunction()


def activation_overrides(model: PreTrainedModel) -> dict[nn.Module, type[ForwardOverride]]:
    """Return overrides for the activation functions of a model."""
    return {
        module: ActivationOverride
        for module in model.modules()
        if is_activation(type(module))
        and not module._modules
        and not module._parameters
        and is_free(module)
    }


def is_activation(kind: type[nn.Module]) -> bool:
    """Return whether a class of modules computes an activation function."""
    return kind in _KINDS or kind.__module__ == _MODULE


def in_whole_vectors(function: Callable[[Tensor], Tensor], inputs: Tensor) -> Tensor:
    """Apply a function to each element, using vector instructions only.

    Args:
        function: Function that torch applies element by element.
        inputs: Inputs of any shape.
    """
    count = inputs.numel()
    padded = _padded_count(count, torch.get_num_threads())
    if padded == count and inputs.is_contiguous():
        return function(inputs)
    flat = functional.pad(inputs.reshape(-1), (0, padded - count))
    return function(flat)[:count].view(inputs.shape)


def _has_ends(inputs: Any) -> bool:
    """Return whether torch may round a tensor's last elements unlike the others."""
    return type(inputs) in PLAIN and inputs.is_cpu and inputs.dtype in DTYPES


def _padded_count(count: int, max_threads: int) -> int:
    """Round up an element count so that every thread uses vector instructions only."""
    threads = 1
    while True:
        share = VECTOR_ELEMENTS * threads
        padded = -(-count // share) * share
        needed = max(1, min(max_threads, -(-padded // ACTIVATION_GRAIN)))
        if needed <= threads:
            return padded
        threads = needed
