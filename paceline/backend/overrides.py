"""Replace `forward` methods of modules in a `ModelView` with backend operations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from paceline.backend.interface import Backend
from paceline.backend.plain_tensors import MULTIPLIED, PLAIN


class OverrideSettings(Protocol):
    """The settings that overrides read; implemented by `paceline.backend.products`."""

    @property
    def backend(self) -> Backend:
        """Backend that computes the products and norms."""

    @property
    def min_rows(self) -> int:
        """Minimum number of rows for which the backend computes matrix products."""

    @property
    def max_rows(self) -> int:
        """Maximum number of rows for which the backend computes matrix products."""

    @property
    def fixed_rows(self) -> int:
        """Number of rows in each of torch's matrix products; 0 means any number."""

    @property
    def norms(self) -> Mapping[nn.Module, float]:
        """Modules whose RMS norms the backend computes, each mapped to the epsilon."""


def is_free(module: nn.Module) -> bool:
    """Return True if no other code has replaced a module's `forward`."""
    return isinstance(vars(module).get("forward"), ForwardOverride | None)


class ForwardOverride:
    """Replaces the `forward` method of a module's copy in a `ModelView`.

    Every call reads the weights of the original module again, because other code may have replaced
    them.

    Args:
        module: Original module.
        products: Settings that the override reads.
    Attributes:
        module: Original module.
        products: Settings that the override reads.
    """

    __slots__ = ("_attributes", "_forward", "module", "products")

    def __init__(self, module: nn.Module, products: OverrideSettings) -> None:
        self.module, self.products = module, products
        # An attribute of a module takes longer to find than an entry of its dictionary.
        self._attributes = vars(module)
        self._forward: Callable[..., Any] = type(module).forward

    def of(self, module: nn.Module) -> ForwardOverride:
        """Return an override of the same type for another module of the same class."""
        return type(self)(module, self.products)

    def in_view(self, twin: nn.Module) -> ForwardOverride:
        """Return the override for the module's copy in a `ModelView`."""
        return self


class LinearOverride(ForwardOverride):
    """Uses the backend's matrix product if it supports the weight and the rows."""

    __slots__ = ("_linear", "_max_numbers", "_min_numbers")

    def __init__(self, module: nn.Module, products: OverrideSettings) -> None:
        super().__init__(module, products)
        inner = module.in_features if isinstance(module, nn.Linear) else 0
        self._min_numbers = products.min_rows * inner
        self._max_numbers = products.max_rows * inner
        self._linear = products.backend.linear

    def __call__(self, rows: Tensor) -> Tensor:
        """Multiply rows [..., inner] by the module's weight."""
        parameters = self._attributes["_parameters"]
        weight, bias = parameters.get("weight"), parameters.get("bias")
        # Other code may have replaced the weight since, for example by a quantised one.
        if (
            self._min_numbers <= rows.numel() <= self._max_numbers
            and type(weight) in MULTIPLIED
            and type(rows) in PLAIN
            and (bias is None or type(bias) in PLAIN)
            and rows.dtype == weight.dtype
            and weight.is_contiguous()
            and not torch.is_grad_enabled()
        ):
            return self._linear(rows, weight, bias)
        usual: Tensor = self._forward(self.module, rows)
        return usual


class FixedRowsOverride(ForwardOverride):
    """Uses torch's matrix product, always with the same number of rows."""

    __slots__ = ()

    def __call__(self, rows: Tensor) -> Tensor:
        """Multiply rows [..., inner] by the module's weight."""
        multiply = partial(self._forward, self.module)
        return _multiply_chunks(multiply, rows, self.products.fixed_rows)


class NormOverride(ForwardOverride):
    """Uses the backend's norm if it supports the weight and the rows."""

    __slots__ = ("_norm", "eps")

    def __init__(
        self, module: nn.Module, products: OverrideSettings, eps: float | None = None
    ) -> None:
        super().__init__(module, products)
        self.eps = products.norms[module] if eps is None else eps
        self._norm = products.backend.rms_norm

    def of(self, module: nn.Module) -> ForwardOverride:
        """Return an override of the same type for another module of the same class."""
        return NormOverride(module, self.products, self.eps)

    def __call__(self, rows: Tensor) -> Tensor:
        """Return the normalised rows [..., size]."""
        weight = self._attributes["_parameters"].get("weight")
        if (
            type(weight) in PLAIN
            and type(rows) in PLAIN
            and rows.dtype == weight.dtype
            and not torch.is_grad_enabled()
        ):
            return self._norm(rows, weight, self.eps)
        usual: Tensor = self._forward(self.module, rows)
        return usual


def _multiply_chunks(multiply: Callable[[Tensor], Tensor], rows: Tensor, size: int) -> Tensor:
    flat = rows.reshape(-1, rows.shape[-1])
    if len(flat) == size:
        return multiply(flat).reshape(*rows.shape[:-1], -1)
    filled = functional.pad(flat, (0, 0, 0, -len(flat) % size)).contiguous()
    chunks = [multiply(filled[first : first + size]) for first in range(0, len(filled), size)]
    product = chunks[0] if len(chunks) == 1 else torch.cat(chunks)
    return product[: len(flat)].reshape(*rows.shape[:-1], product.shape[-1])
