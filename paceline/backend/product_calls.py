"""Redirect the matrix products that a module's own code computes to a backend."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from paceline.backend.interface import Backend
from paceline.backend.overrides import ForwardOverride
from paceline.backend.settings import SIZE_MULTIPLE


class PaddedLinearOverride(ForwardOverride):
    """Pads a weight with sizes that the backend's product does not support."""

    __slots__ = ()

    def __call__(self, rows: Tensor) -> Tensor:
        """Return the products for rows [..., inner]."""
        parameters = self._attributes["_parameters"]
        if torch.is_grad_enabled() or rows.dtype != parameters["weight"].dtype:
            usual: Tensor = self._forward(self.module, rows)
            return usual
        return _multiply_padded(
            self.products.backend, rows, parameters["weight"], parameters["bias"]
        )


class RouterOverride(ForwardOverride):
    """Computes a module's calls to `functional.linear` with the backend's product."""

    __slots__ = ()

    def __call__(self, *inputs: Any, **options: Any) -> Any:
        """Return the module's outputs."""
        with _ProductCalls(self.products.backend):
            return self._forward(self.module, *inputs, **options)


class MixerOverride(ForwardOverride):
    """Computes a mixer's `weight @ columns` with the backend's product."""

    __slots__ = ()

    def calls(self) -> AbstractContextManager[object]:
        """Return a context in which the backend computes this thread's products."""
        return _ProductCalls(self.products.backend)


class _ProductCalls(TorchFunctionMode):
    """Redirects `functional.linear` and `weight @ columns` to a backend."""

    def __init__(self, backend: Backend) -> None:
        super().__init__()
        self._backend = backend

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run a torch function, or the backend's product instead of it."""
        if func is functional.linear and not kwargs and len(args) in (2, 3):
            return _multiply_padded(self._backend, args[0], args[1], (*args, None)[2])
        if func is Tensor.matmul and (args[0].dim() == 2 or args[0].shape[1:-2] == (1,)):
            return _multiply_columns(self._backend, args[0], args[1])
        return func(*args, **(kwargs or {}))


def _multiply_columns(backend: Backend, weights: Tensor, columns: Tensor) -> Tensor:
    """Return weights @ columns, where each column belongs to one token.

    Args:
        backend: Backend that computes the products.
        weights: One weight [outer, inner], or one per head, [heads, 1, outer, inner].
        columns: [..., inner, tokens], with heads first if there are several weights.
    """
    rows = columns.transpose(-1, -2)
    if weights.dim() == 2:
        products = _multiply_padded(backend, rows, weights, None)
    else:
        heads = zip(rows, weights.squeeze(1), strict=True)
        products = torch.stack(
            [_multiply_padded(backend, head, weight, None) for head, weight in heads]
        )
    return products.transpose(-1, -2)


def _multiply_padded(backend: Backend, rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return rows @ weight.T + bias, padding the weight with zeros if needed."""
    outer, inner = weight.shape
    padding = 0, -inner % SIZE_MULTIPLE, 0, -outer % SIZE_MULTIPLE
    if any(padding):
        weight, rows = functional.pad(weight, padding), functional.pad(rows, padding[:2])
        bias = None if bias is None else functional.pad(bias, padding[2:])
    if rows.dtype != weight.dtype or not backend.takes_weight(weight):
        return functional.linear(rows, weight, bias)[..., :outer]
    return backend.linear(rows, weight, bias)[..., :outer]
