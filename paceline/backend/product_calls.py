"""Replace the matrix products in a module's own code with a backend's products."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from paceline.backend.activations import WholeVectors, no_replacements
from paceline.backend.interface import Backend
from paceline.backend.overrides import ForwardOverride
from paceline.backend.own_code import OwnCodeOverride
from paceline.backend.settings import SIZE_MULTIPLE


class PaddedLinearOverride(ForwardOverride):
    """Pads the rows and the weight to sizes that the backend's product supports."""

    __slots__ = ()

    def __call__(self, rows: Tensor) -> Tensor:
        """Return rows [..., inner], multiplied by the module's weight."""
        parameters = self._attributes["_parameters"]
        if torch.is_grad_enabled() or rows.dtype != parameters["weight"].dtype:
            usual: Tensor = self._forward(self.module, rows)
            return usual
        return _multiply_padded(
            self.products.backend, rows, parameters["weight"], parameters["bias"]
        )


class RouterOverride(ForwardOverride):
    """Lets the backend compute a module's calls to `functional.linear`."""

    __slots__ = ()

    def __call__(self, *inputs: Any, **options: Any) -> Any:
        """Return the module's outputs, computed with the backend's product."""
        with _ProductCalls(self.products.backend, {functional.linear: _multiply_padded}):
            return self._forward(self.module, *inputs, **options)


class DenseExpertsOverride(ForwardOverride):
    """Lets the backend compute the products of experts that each receive all rows."""

    __slots__ = ()

    def __call__(self, hidden_states: Tensor, **options: Any) -> Tensor:
        """Return the experts' outputs; the arguments are those of the replaced module."""
        with _ProductCalls(self.products.backend, {torch.bmm: _multiply_batch}):
            outputs: Tensor = self._forward(self.module, hidden_states, **options)
            return outputs


class PositionBiasOverride(ForwardOverride):
    """Lets the backend compute the product `rows @ weight` of a position bias."""

    __slots__ = ()

    def __call__(self, *inputs: Tensor) -> Tensor:
        """Return the position bias, computed with the backend's product."""
        with _ProductCalls(self.products.backend, {Tensor.matmul: _multiply_rows}):
            bias: Tensor = self._forward(self.module, *inputs)
            return bias


class MixerOverride(OwnCodeOverride):
    """Lets the backend compute the products `weight @ columns` of a mixer."""

    __slots__ = ()

    def calls(self) -> AbstractContextManager[object]:
        """Return a context in which the backend computes this thread's matrix products."""
        return _ProductCalls(self.products.backend, {Tensor.matmul: _multiply_columns})


class ConvolutionOverride(ForwardOverride):
    """Computes an unpadded convolution as a product of token windows and the weight."""

    __slots__ = ()

    def __call__(self, columns: Tensor) -> Tensor:
        """Return the convolution of inputs [batch, channels, tokens]."""
        module: Any = self.module
        weight, bias = module.weight, module.bias
        outer, inner, size = weight.shape
        windows = columns.unfold(2, size, 1).transpose(1, 2)  # [batch, tokens, channels, size]
        if inner == 1 and outer == module.groups:
            factors = weight[:, 0].float()
            total = torch.zeros(windows.shape[:-1]) if bias is None else bias.float()
            for step in range(size):
                total = total + windows[..., step].float() * factors[:, step]
            return total.to(columns.dtype).transpose(1, 2)
        groups = windows.reshape(*windows.shape[:2], module.groups, inner * size).unbind(2)
        weights = weight.flatten(1).chunk(module.groups)
        biases = [None] * module.groups if bias is None else bias.chunk(module.groups)
        products = [
            _multiply_padded(self.products.backend, rows, group_weight, group_bias)
            for rows, group_weight, group_bias in zip(groups, weights, biases, strict=True)
        ]
        return torch.cat(products, dim=-1).transpose(1, 2)


class _ProductCalls(WholeVectors):
    """Replaces matrix products, in addition to activation functions.

    Args:
        backend: Backend that computes the products.
        functions: Replacements of torch functions. Each replacement receives the backend as its
            first argument.
    """

    def __init__(self, backend: Backend, functions: dict[Any, Callable[..., Tensor]]) -> None:
        super().__init__()
        self._backend, self._functions = backend, functions

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run a torch function's replacement, or the function itself if there is none."""
        replacement = None if kwargs else self._functions.get(func)
        if replacement is not None:
            return replacement(self._backend, *args)
        return super().__torch_function__(func, types, args, kwargs)


def _multiply_batch(backend: Backend, rows: Tensor, weights: Tensor) -> Tensor:
    """Return rows @ weights for each expert.

    Args:
        backend: Backend that computes the products.
        rows: Rows of each expert, [experts, tokens, inner].
        weights: Weights of each expert, [experts, inner, outer].
    """
    pairs = zip(rows, weights, strict=True)
    return torch.stack([_multiply_padded(backend, inputs, weight.T) for inputs, weight in pairs])


def _multiply_columns(backend: Backend, weights: Tensor, columns: Tensor) -> Tensor:
    """Return weights @ columns, where each column belongs to one token.

    Args:
        backend: Backend that computes the products.
        weights: One weight [outer, inner], or one per head, [heads, 1, outer, inner].
        columns: Columns, [..., inner, tokens], with heads first if there are several weights.
    """
    rows = columns.transpose(-1, -2)
    if weights.dim() == 2:
        products = _multiply_padded(backend, rows, weights)
    elif weights.shape[1:-2] == (1,):
        heads = zip(rows, weights.squeeze(1), strict=True)
        products = torch.stack([_multiply_padded(backend, *head) for head in heads])
    else:
        return torch.matmul(weights, columns)
    return products.transpose(-1, -2)


def _multiply_rows(backend: Backend, rows: Tensor, weight: Tensor) -> Tensor:
    """Return rows @ weight, where the weight is [inner, outer]."""
    return _multiply_padded(backend, rows, weight.T)


def _multiply_padded(
    backend: Backend, rows: Tensor, weight: Tensor, bias: Tensor | None = None
) -> Tensor:
    """Return rows @ weight.T + bias, padding the weight with zeros if needed."""
    outer, inner = weight.shape
    if rows.dtype != weight.dtype:
        return functional.linear(rows, weight, bias)
    if not backend.takes_weight(weight):
        padding = 0, -inner % SIZE_MULTIPLE, 0, -outer % SIZE_MULTIPLE
        weight, rows = functional.pad(weight, padding), functional.pad(rows, padding[:2])
        bias = None if bias is None else functional.pad(bias, padding[2:])
        weight = weight.contiguous()
        if not backend.takes_weight(weight):
            return functional.linear(rows, weight, bias)[..., :outer]
    with no_replacements():
        return backend.linear(rows, weight, bias)[..., :outer]
