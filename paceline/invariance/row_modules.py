"""Find the modules of a model that map rows to rows, and how the model calls them.

One short forward pass shows the calls.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from threading import get_ident
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from paceline.backend.overrides import ForwardOverride
from paceline.invariance.row_classes import RowFunction
from paceline.invariance.settings import (
    MAX_MEDIUM_WEIGHTS,
    MAX_WIDE_WEIGHTS,
    MEDIUM_COUNTS,
    NARROW_COUNTS,
    PROBE_TOKENS,
    WIDE_COUNTS,
)


@dataclass(slots=True)
class RowModule:
    """Kind of module, represented by the first such module in the model.

    Attributes:
        name: Name of the module in the model.
        module: The module.
        before: Sizes of its input before the axis of tokens.
        after: Sizes of its input after the axis of tokens.
        like: Tensor with the dtype and device of the input.
        times: Number of such modules.
    """

    name: str
    module: nn.Module
    before: tuple[int, ...]
    after: tuple[int, ...]
    like: Tensor
    times: int = 1

    @property
    def is_product(self) -> bool:
        """True if the module is a matrix product with one row per token."""
        return (
            isinstance(self.module, nn.Linear | Conv1D)
            and math.prod(self.before) == 1
            and len(self.after) == 1
        )

    @property
    def has_bias(self) -> bool:
        """True if the product adds a bias."""
        return getattr(self.module, "bias", None) is not None

    @property
    def matrix(self) -> Tensor:
        """Weight of the product, [out, in]."""
        weight: Tensor = self.module.get_parameter("weight").detach()
        return weight.T if isinstance(self.module, Conv1D) else weight

    @property
    def original(self) -> RowModule:
        """This kind of module in the user's model, outside of any view."""
        override = vars(self.module).get("forward")
        module = override.module if isinstance(override, ForwardOverride) else self.module
        return replace(self, module=module)

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Sizes of one row: all axes except that of tokens.

        Leading axes of size 1 are left out for a product.
        """
        return self.after if self.is_product else (*self.before, *self.after)

    @property
    def shape(self) -> str:
        """Shape of the module in words."""
        inner = "x".join(map(str, self.after))
        return (
            f"{inner} -> {self.matrix.shape[0]}"
            if self.is_product
            else f"{type(self.module).__name__} of {inner}"
        )

    def counts(self) -> tuple[int, ...]:
        """Return the row counts that can be probed in a fraction of a second."""
        size = self.matrix.numel() if self.is_product else 0
        if size <= MAX_WIDE_WEIGHTS:
            return WIDE_COUNTS
        return MEDIUM_COUNTS if size <= MAX_MEDIUM_WEIGHTS else NARROW_COUNTS

    def function(self, weight: Tensor | None = None) -> RowFunction:
        """Return the module as a function of rows [count, *row_shape].

        The function calls the module as the model does.

        Args:
            weight: Weight [out, in] that replaces the product's own; the bias is then zero. None =
                the module as it is.
        """
        if weight is None:
            return partial(self._apply, self.module)
        tensors = {"weight": weight.T if isinstance(self.module, Conv1D) else weight}
        if self.has_bias:
            tensors["bias"] = torch.zeros_like(self.module.bias)  # type: ignore[arg-type]
        for name, tensor in tensors.items():
            tensor.requires_grad_(getattr(self.module, name).requires_grad)
        return partial(self._apply, _twin_of(self.module, tensors))

    def caller(self, count: int) -> Callable[[], None]:
        """Return a call with `count` rows that waits for its result."""
        rows = torch.ones(count, *self.row_shape, dtype=self.like.dtype, device=self.like.device)
        function = self.function()

        def call() -> None:
            function(rows)
            if rows.is_cuda:
                torch.cuda.synchronize(rows.device)

        return call

    @torch.inference_mode()
    def _apply(self, call: Callable[..., Tensor], rows: Tensor) -> Tensor:
        axis = len(self.before)
        moved = rows.reshape(-1, *self.before, *self.after).movedim(0, axis)
        # Flatten in between: torch keeps any stride for an axis of size 1, and the stride selects
        # the kernel.
        return call(moved.flatten().view(moved.shape)).movedim(axis, 0)


def _twin_of(module: nn.Module, tensors: dict[str, Tensor]) -> nn.Module:
    """Return a copy of a module with other tensors; all else is shared.

    The module itself stays as it is.
    """
    twin: nn.Module = module.__class__.__new__(module.__class__)
    own = vars(twin)
    own.update(vars(module), _parameters={**module._parameters, **tensors})
    if isinstance(own.get("forward"), ForwardOverride):
        own["forward"] = own["forward"].of(twin)
    return twin


def find_row_modules(model: PreTrainedModel) -> tuple[list[RowModule], str]:
    """Run a short forward pass; return the kinds of modules that take part.

    Returns:
        The modules, and why they cannot be probed alone; "" = they can.
    """
    kinds: dict[tuple[Any, ...], RowModule] = {}
    observed: set[nn.Module] = set()
    thread = get_ident()

    def record(name: str, module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        if get_ident() != thread:  # other threads may use the model
            return
        row_module = _row_module(name, module, inputs, output)
        if row_module is None:
            return
        observed.add(module)
        kind = kinds.setdefault(_kind_of(row_module), row_module)
        if kind is not row_module:
            kind.times += 1

    # The hooks exist during this forward pass only.
    hooks = [
        module.register_forward_hook(partial(record, name))
        for name, module in model.named_modules()
        if not any(module.children())
    ]
    try:
        with torch.inference_mode():
            token_ids = torch.arange(PROBE_TOKENS, device=model.device)[None] % 2
            model(input_ids=token_ids, use_cache=False)
    except Exception as error:  # a module of another library may raise any type
        return (
            [],
            f"{model.__class__.__name__} cannot be watched in a forward: {error}"
            f" ({type(error).__name__})",
        )
    finally:
        for hook in hooks:
            hook.remove()
    fault = _unprobed(model, observed)
    return ([], fault) if fault else (list(kinds.values()), "")


def _kind_of(module: RowModule) -> tuple[Any, ...]:
    """Return a key that modules with the same kernels share."""
    parameters = [
        (weight.shape, weight.stride(), weight.dtype) for weight in module.module.parameters()
    ]
    return (
        type(module.module),
        repr(module.module),
        module.row_shape,
        len(module.before),
        module.like.dtype,
        repr(parameters),
    )


def _unprobed(model: PreTrainedModel, observed: set[nn.Module]) -> str:
    """Return which weights no observed module uses; "" = none."""
    for name, module in model.named_modules():
        if module in observed or isinstance(module, nn.Embedding):
            continue
        for parameter_name, parameter in module.named_parameters(recurse=False):
            if parameter.dim() > 1:
                return (
                    f"{name}.{parameter_name} belongs to a {type(module).__name__}, whose sums"
                    " cannot be tried alone; expected weights in nn.Linear, Conv1D and embeddings"
                )
    return ""


def _row_module(
    name: str, module: nn.Module, inputs: tuple[Any, ...], output: Any
) -> RowModule | None:
    """Return a module as it was called.

    None means that it does not map the numbers of each token to numbers of that token.
    """
    if (
        len(inputs) != 1
        or not isinstance(inputs[0], Tensor)
        or not isinstance(output, Tensor)
        or output is inputs[0]
    ):
        return None
    shape = tuple(inputs[0].shape)
    if (
        not inputs[0].is_floating_point()
        or PROBE_TOKENS not in shape[:-1]
        or shape[:-1] != tuple(output.shape[:-1])
    ):
        return None
    axis = shape.index(PROBE_TOKENS)
    return RowModule(name, module, shape[:axis], shape[axis + 1 :], inputs[0].new_zeros(()))
