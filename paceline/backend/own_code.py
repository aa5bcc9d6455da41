"""Vectorise activation functions that modules call directly.

Some modules call functions such as `silu` in their `forward` method, instead of calling an
activation submodule. The module `activations` explains why every element must be vectorised.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import AbstractContextManager
from types import CodeType, FunctionType
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel

from paceline.backend.activations import (
    DTYPES,
    FUNCTION_NAMES,
    WholeVectors,
    is_activation,
    no_replacements,
)
from paceline.backend.overrides import (
    ForwardOverride,
    LinearOverride,
    OverrideSettings,
    is_free,
)

# Names in code that converts numbers to float32.
_CONVERSIONS = frozenset({"float", "float32"})


class OwnCodeOverride(ForwardOverride):
    """Runs a module's own code, but replaces the activation functions that it calls.

    The replacements use vector instructions only. The override runs the module's copy in a
    `ModelView`, whose submodules have overrides too.
    """

    __slots__ = ()

    def in_view(self, twin: nn.Module) -> ForwardOverride:
        """Return the override for the module's copy in a `ModelView`."""
        return self.of(twin)

    def calls(self) -> AbstractContextManager[object]:
        """Return a context in which activation functions use vector instructions only."""
        return WholeVectors()

    def __call__(self, *inputs: Any, **options: Any) -> Any:
        """Return the module's outputs."""
        with self.calls():
            return self._forward(self.module, *inputs, **options)


class InnerLinearOverride(LinearOverride):
    """Multiplies as `LinearOverride` does, but without calling `WholeVectors`."""

    __slots__ = ()

    def __init__(self, module: nn.Module, products: OverrideSettings) -> None:
        super().__init__(module, products)
        linear = products.backend.linear

        def multiply(rows: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
            with no_replacements():
                return linear(rows, weight, bias)

        self._linear = multiply


def own_code_overrides(model: PreTrainedModel) -> dict[nn.Module, type[ForwardOverride]]:
    """Return overrides for the modules whose own code may call activation functions.

    On devices other than CPUs, no module needs an override. In a bfloat16 model, only modules
    whose code converts numbers to float32 need one.
    """
    if model.device.type != "cpu":
        return {}
    modules, converts = [*model.modules()], model.dtype not in DTYPES
    calling = {kind for kind in {*map(type, modules)} if _calls_activation(kind, converts)}
    return {
        module: OwnCodeOverride for module in modules if type(module) in calling and is_free(module)
    }


def _calls_activation(kind: type[Any], converts: bool) -> bool:
    """Return whether the `forward` method of a class may call an activation function.

    The search follows the names in `forward` to other functions and methods. Recurrences, which
    transformers wraps, are excluded, because paceline computes them.

    Args:
        kind: Class of a module.
        converts: Whether to count only functions whose code also converts numbers to float32.
    """
    if is_activation(kind) or kind.__module__.startswith("torch."):
        return False
    pending: list[Any] = [inspect.unwrap(kind.forward)]
    seen: set[Any] = set()
    while pending:
        function = pending.pop()
        is_recurrence = hasattr(function, "__wrapped__")
        if not isinstance(function, FunctionType) or function in seen or is_recurrence:
            continue
        seen.add(function)
        names = {*_names(function.__code__)}
        if names & FUNCTION_NAMES and (not converts or names & _CONVERSIONS):
            return True
        pending += [function.__globals__.get(name) for name in names]
        pending += [inspect.getattr_static(kind, name, None) for name in names]
    return False


def _names(code: CodeType) -> Iterator[str]:
    """Yield the globals and attributes that a function and its inner functions use."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
