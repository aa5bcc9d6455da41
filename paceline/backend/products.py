"""Choose which of a model's matrix products and norms a backend computes.

A view of a model (`paceline.model.model_view`) contains copies of modules. The overrides from this
file replace the `forward` methods of these copies.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from paceline.backend.interface import Backend
from paceline.backend.overrides import (
    FixedRowsOverride,
    ForwardOverride,
    LinearOverride,
    NormOverride,
    is_free,
)
from paceline.backend.own_code import InnerLinearOverride, OwnCodeOverride
from paceline.backend.plain_tensors import MULTIPLIED, has_numbers, is_plain
from paceline.backend.settings import MAX_HELPER_NUMBERS, MAX_HELPERS, MAX_ROWS, MIN_HEAD_RATIO
from paceline.backend.torch_backend import TORCH


def is_plain_product(module: nn.Module) -> bool:
    """Return True if a module does nothing but multiply by a weight and add a bias."""
    held = module._parameters
    if (
        type(held) is not dict
        or held.keys() != {"weight", "bias"}
        or not has_numbers(held["weight"])
    ):
        return False
    return (held["bias"] is None or is_plain(held["bias"])) and is_free(module)


def plain_products(model: PreTrainedModel) -> tuple[nn.Module, ...]:
    """Return the modules of a model that only multiply by a weight and add a bias."""
    return tuple(
        module
        for module in model.modules()
        if type(module) in (nn.Linear, Conv1D) and is_plain_product(module)
    )


def replaceable(model: PreTrainedModel, backend: Backend) -> tuple[nn.Linear, ...]:
    """Return the modules whose products a backend can compute."""
    return tuple(
        module
        for module in model.modules()
        if type(module) is nn.Linear
        and is_plain_product(module)
        and module.weight.shape == (module.out_features, module.in_features)
        and backend.takes_weight(module.weight)
    )


@dataclass(frozen=True, slots=True)
class Products:
    """Matrix products and norms that replace those of torch in a model.

    Attributes:
        modules: Modules whose products are replaced; default: none.
        min_rows: Minimum number of rows for a replaced product; default 1.
        max_rows: Maximum number of rows for a replaced product; default: no limit.
        fixed_rows: Number of rows in every torch product. Longer inputs are split, and the last
            chunk is padded with zeros. If 0 (default), the backend computes the products.
        norms: Modules whose RMS norms the backend computes for any number of rows, each mapped to
            the norm's epsilon.
        routing: Overrides of experts, routers and activation functions; default: none.
        backend: Backend that computes the products and norms; default: torch.
        max_helpers: Maximum number of helper threads that share the products of a forward pass;
            default `MAX_HELPERS`.
    """

    modules: tuple[nn.Module, ...] = ()
    min_rows: int = 1
    max_rows: int = MAX_ROWS
    fixed_rows: int = 0
    norms: Mapping[nn.Module, float] = field(default_factory=dict)
    routing: Mapping[nn.Module, type[ForwardOverride]] = field(default_factory=dict)
    backend: Backend = field(default=TORCH, compare=False, repr=False)
    max_helpers: int = field(default=MAX_HELPERS, compare=False)
    _overrides: dict[int, type[ForwardOverride]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    _max_width: int = field(default=MAX_ROWS, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._overrides.update((id(module), NormOverride) for module in self.norms)
        self._overrides.update((id(module), kind) for module, kind in self.routing.items())
        kind = FixedRowsOverride if self.fixed_rows else LinearOverride
        self._overrides.update((id(module), kind) for module in self.modules)
        self._overrides.update(
            (id(child), InnerLinearOverride)
            for module, kind in self.routing.items()
            if kind is OwnCodeOverride
            for child in module.modules()
            if self._overrides.get(id(child)) is LinearOverride
        )
        widths = (
            module.out_features
            for module in self.modules
            if isinstance(module, nn.Linear)
            and module.out_features < MIN_HEAD_RATIO * module.in_features
        )
        object.__setattr__(self, "_max_width", max(widths, default=MAX_ROWS))

    @staticmethod
    def of_backend(
        model: PreTrainedModel,
        backend: Backend,
        min_rows: int = 1,
        max_rows: int = MAX_ROWS,
        routing: Mapping[nn.Module, type[ForwardOverride]] | None = None,
    ) -> Products:
        """Return a backend's products and norms for a model.

        Args:
            model: Model whose products are replaced.
            backend: Backend that computes the products and norms.
            min_rows: Minimum number of rows for a product; default 1.
            max_rows: Maximum number of rows for a product; default: no limit.
            routing: Overrides of experts, routers and activation functions; default: none.
        """
        modules = replaceable(model, backend)
        norms = backend.rms_norms(model) if modules else {}
        norms = {module: eps for module, eps in norms.items() if is_free(module)}
        return Products(
            modules, min_rows, max_rows, norms=norms, routing=routing or {}, backend=backend
        )

    def override(self, module: nn.Module) -> ForwardOverride | None:
        """Return the override for a module's `forward` in a model view, or None."""
        kind = self._overrides.get(id(module))
        return None if kind is None or not is_free(module) else kind(module, self)

    def linear(self, rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Return rows @ weight.T + bias, computed by the backend or by torch.

        torch computes the product only if the backend cannot.

        Args:
            rows: Input, [..., inner].
            weight: Weight of a module or a slice of it, [outer, inner].
            bias: Bias, [outer], or None.
        """
        count = rows.numel() // rows.shape[-1]
        if (
            self.modules
            and not self.fixed_rows
            and self.min_rows <= count <= self.max_rows
            and type(weight) in MULTIPLIED
            and rows.dtype == weight.dtype
            and self.backend.takes_weight(weight)
        ):
            return self.backend.linear(rows, weight, bias)
        return functional.linear(rows, weight, bias)

    def num_helpers(self, num_rows: int) -> int | None:
        """Return the number of helper threads for a forward pass over `num_rows` rows.

        The result is None if each operation divides its work among torch's threads.
        """
        threads = torch.get_num_threads()
        if threads == 1 or self.fixed_rows or num_rows * self._max_width >= MAX_HELPER_NUMBERS:
            return None
        return min(threads - 1, self.max_helpers)

    def thread_team(self, num_rows: int) -> AbstractContextManager[None]:
        """Return a context in which helper threads share the products of a forward pass."""
        return self.backend.thread_team(self.num_helpers(num_rows))
