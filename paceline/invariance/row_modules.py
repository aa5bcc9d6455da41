"""The modules of a model that map rows to rows, each kind once, and how the model calls them:
seen in one short forward.
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

from paceline.backend.products import ForwardOverride
from paceline.invariance.row_classes import RowFunction

_TOKENS = 13  # of the forward that is watched; a number that is unlikely to be a size
# weights: up to the first, everything is tried; above the second, little
_WIDE_PRODUCT, _NARROW_PRODUCT = (1 << 20, 1 << 24)


@dataclass(slots=True)
class RowModule:
    """One kind of module: the first of them, and how many there are.

    Attributes:
        before, after: the sizes of its input around the axis of tokens; all but the last are 1 or
            heads.
        like: a number of the input's dtype and device.
    """

    name: str
    module: nn.Module
    before: tuple[int, ...]
    after: tuple[int, ...]
    like: Tensor
    times: int = 1

    @property
    def is_product(self) -> bool:
        """Whether it is a matrix product of one row per token."""
        return (
            isinstance(self.module, nn.Linear | Conv1D)
            and math.prod(self.before) == 1
            and len(self.after) == 1
        )

    @property
    def has_bias(self) -> bool:
        """Whether something is added to the product."""
        return getattr(self.module, "bias", None) is not None

    @property
    def matrix(self) -> Tensor:
        """The weight of a product, [out, in]."""
        weight: Tensor = self.module.get_parameter("weight").detach()
        return weight.T if isinstance(self.module, Conv1D) else weight

    @property
    def original(self) -> RowModule:
        """The same kind of module as the model has it, outside of any view."""
        override = vars(self.module).get("forward")
        module = override.module if isinstance(override, ForwardOverride) else self.module
        return replace(self, module=module)

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Sizes of one row: all but the axis of tokens, and without the ones in front of a
        product's.
        """
        return self.after if self.is_product else (*self.before, *self.after)

    @property
    def shape(self) -> str:
        """In words."""
        inner = "x".join(map(str, self.after))
        return (
            f"{inner} -> {self.matrix.shape[0]}"
            if self.is_product
            else f"{type(self.module).__name__} of {inner}"
        )

    def counts(
        self, wide: tuple[int, ...], medium: tuple[int, ...], narrow: tuple[int, ...]
    ) -> tuple[int, ...]:
        """Return the row counts that can be tried in a fraction of a second."""
        size = self.matrix.numel() if self.is_product else 0
        return wide if size <= _WIDE_PRODUCT else medium if size <= _NARROW_PRODUCT else narrow

    def function(self, weight: Tensor | None = None) -> RowFunction:
        """Return it as a function of rows [count, *row_shape], called as the model does.

        Args:
            weight: [out, in], to take the place of a product's own; a bias is zero then.
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
        """Return a call with `count` rows, which ends when its result is there."""
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
        # Flat in between: of an axis of one row torch keeps any stride, and its products look at
        # that, too.
        return call(moved.flatten().view(moved.shape)).movedim(axis, 0)


def _twin_of(module: nn.Module, tensors: dict[str, Tensor]) -> nn.Module:
    """Return a module that has these tensors for its own and shares all else; nothing is written
    to the module itself.
    """
    twin: nn.Module = module.__class__.__new__(module.__class__)
    own = vars(twin)
    own.update(vars(module), _parameters={**module._parameters, **tensors})
    if isinstance(own.get("forward"), ForwardOverride):
        own["forward"] = own["forward"].of(twin)
    return twin


def survey(model: PreTrainedModel) -> tuple[list[RowModule], str]:
    """Return the kinds of modules that take part in a forward, and why they cannot be tried
    alone; "" where they can.
    """
    found: dict[tuple[Any, ...], RowModule] = {}
    seen: set[nn.Module] = set()
    thread = get_ident()

    def note(name: str, module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        if get_ident() != thread:  # others may use the model
            return
        made = _row_module(name, module, inputs, output)
        if made is None:
            return
        seen.add(module)
        key = (
            type(module),
            repr(module),
            made.row_shape,
            len(made.before),
            made.like.dtype,
            [(one.shape, one.stride(), one.dtype) for one in module.parameters()].__repr__(),
        )
        if key in found:
            found[key].times += 1
        else:
            found[key] = made

    # held for this forward only
    hooks = [
        module.register_forward_hook(partial(note, name))
        for name, module in model.named_modules()
        if not any(module.children())
    ]
    try:
        with torch.inference_mode():
            model(input_ids=torch.arange(_TOKENS, device=model.device)[None] % 2, use_cache=False)
    except Exception as error:  # a module of another library raises what it likes
        return (
            [],
            f"{model.__class__.__name__} cannot be watched in a forward: {error}"
            f" ({type(error).__name__})",
        )
    finally:
        for hook in hooks:
            hook.remove()
    for name, module in model.named_modules():
        if module in seen or isinstance(module, nn.Embedding):
            continue
        for parameter_name, parameter in module.named_parameters(recurse=False):
            if parameter.dim() > 1:
                return [], (
                    f"{name}.{parameter_name} belongs to a {type(module).__name__}, whose sums"
                    " cannot be tried alone; expected weights in nn.Linear, Conv1D and embeddings"
                )
    return list(found.values()), ""


def _row_module(
    name: str, module: nn.Module, inputs: tuple[Any, ...], output: Any
) -> RowModule | None:
    """Return a module as it was called, None where it does not map each token's numbers to
    numbers of its own.
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
        or _TOKENS not in shape[:-1]
        or shape[:-1] != tuple(output.shape[:-1])
    ):
        return None
    axis = shape.index(_TOKENS)
    return RowModule(name, module, shape[:axis], shape[axis + 1 :], inputs[0].new_zeros(()))
