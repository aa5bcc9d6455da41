"""Call one module of a model on rows of inputs, as the model would call it.

Each of these modules processes every row separately. The self-test for batch invariance calls them
with different numbers of rows (`probing`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from paceline.backend.overrides import ForwardOverride
from paceline.core.tree import EMPTY_TREE
from paceline.invariance.row_classes import RowFunction
from paceline.invariance.settings import (
    MAX_MEDIUM_WEIGHTS,
    MAX_WIDE_WEIGHTS,
    MEDIUM_COUNTS,
    NARROW_COUNTS,
    WIDE_COUNTS,
)
from paceline.kv_cache.state_layer import SlotCount, StateLayer
from paceline.model.mixers.recurrent_batch import RecurrentBatch


@dataclass(slots=True)
class RowModule:
    """A module that represents all modules of the same kind in a model.

    Attributes:
        name: Name of the module in the model.
        module: The module itself.
        before: Sizes of the input's axes before the token axis.
        after: Sizes of the input's axes after the token axis.
        like: Tensor with the dtype and device of the input.
        times: Number of modules of this kind in the model.
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
        """`RowModule` for the user's module instead of its copy in a `ModelView`."""
        override = vars(self.module).get("forward")
        module = override.module if isinstance(override, ForwardOverride) else self.module
        return replace(self, module=module)

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Sizes of one row: all axes except the token axis.

        For a product, leading axes of size 1 are omitted.
        """
        return self.after if self.is_product else (*self.before, *self.after)

    @property
    def shape(self) -> str:
        """Shape of the module, for messages."""
        inner = "x".join(map(str, self.after))
        return (
            f"{inner} -> {self.matrix.shape[0]}"
            if self.is_product
            else f"{type(self.module).__name__} of {inner}"
        )

    def counts(self) -> tuple[int, ...]:
        """Return the row counts that can be probed in a fraction of a second."""
        return counts_for(self.matrix.numel() if self.is_product else 0)

    def function(self, weight: Tensor | None = None) -> RowFunction:
        """Return a function that calls the module on rows [count, *row_shape].

        The function calls the module in the same way as the model does.

        Args:
            weight: Weight [out, in] that replaces the product's weight; the bias is then zero.
                None keeps the module unchanged.
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
        """Return a function that runs the module on `count` rows and waits for the result."""
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
        # The stride of an axis can select the kernel. torch keeps any stride for an axis of size 1,
        # unless the tensor is flattened first.
        return call(moved.flatten().view(moved.shape)).movedim(axis, 0)


def num_weights(module: nn.Module) -> int:
    """Return the number of weights in a module, not counting those of its submodules."""
    return sum(weight.numel() for weight in module.parameters(recurse=False))


def counts_for(num_weights: int) -> tuple[int, ...]:
    """Return the row counts for probing a module, given its number of weights."""
    if num_weights <= MAX_WIDE_WEIGHTS:
        return WIDE_COUNTS
    return MEDIUM_COUNTS if num_weights <= MAX_MEDIUM_WEIGHTS else NARROW_COUNTS


def _twin_of(module: nn.Module, tensors: dict[str, Tensor]) -> nn.Module:
    """Return a copy of a module that uses other tensors, and shares everything else.

    `tensors` contains the new parameters by name. The module itself does not change.
    """
    twin: nn.Module = module.__class__.__new__(module.__class__)
    own = vars(twin)
    own.update(vars(module), _parameters={**module._parameters, **tensors})
    if isinstance(own.get("forward"), ForwardOverride):
        own["forward"] = own["forward"].of(twin)
    return twin


@dataclass(slots=True)
class RowRouter(RowModule):
    """A module with several results per token, such as a router.

    Its `function` joins all results of a row as float64, which represents every value exactly.

    Attributes:
        constants: Additional arguments of each call. Each is a weight or a buffer of the model, or
            None.
    """

    constants: tuple[Tensor | None, ...] = ()

    def function(self, weight: Tensor | None = None) -> RowFunction:
        """Return a function that calls the module on rows [count, *row_shape]."""
        return partial(self._apply, self._joined)

    def _joined(self, rows: Tensor) -> Tensor:
        output = self.module(rows, *self.constants)
        results = [output] if isinstance(output, Tensor) else output
        results = [result.flatten(1).double() for result in results]
        return torch.cat(results, dim=1)


class RowPositionBias(RowModule):
    """A module that computes a position bias for each distance between query and key.

    A row contains the states of all heads for one query.
    """

    def counts(self) -> tuple[int, ...]:
        """Return the row counts that can be probed in a fraction of a second."""
        return counts_for(num_weights(self.module))

    def function(self, weight: Tensor | None = None) -> RowFunction:
        """Return a function that computes the bias for rows [count, heads, size]."""
        return self._run

    @torch.inference_mode()
    def _run(self, rows: Tensor) -> Tensor:
        distances = torch.arange(self.module.get_parameter("proj").shape[1], device=rows.device)
        queries = distances[-1].expand(len(rows))
        bias: Tensor = self.module(rows[None].contiguous(), queries, distances)
        return bias[0].transpose(0, 1)


class RowMixer(RowModule):
    """A mixer of a recurrent layer, called with one token per request.

    Each row is the input of two successive tokens of a request. The second token therefore starts
    from a nonzero state. Only the outputs for the second token are compared.
    """

    def counts(self) -> tuple[int, ...]:
        """Return the row counts that can be probed in a fraction of a second."""
        return counts_for(sum(weight.numel() for weight in self.module.parameters()))

    def function(self, weight: Tensor | None = None) -> RowFunction:
        """Return a function that runs the mixer on rows [count, size]."""
        return self._run

    @torch.inference_mode()
    def _run(self, rows: Tensor) -> Tensor:
        mixer = vars(self.module)["forward"].mixer
        layer = StateLayer(SlotCount(len(rows)), 1)
        for is_prompt in (True, False):
            batch = _single_tokens(len(rows), is_prompt)
            output, update = mixer(rows[None].contiguous(), batch, layer, _call_nothing)
            update.commit(layer, batch, [[]] * len(rows))
        results = output if isinstance(output, tuple) else (output,)
        return torch.cat([result[0].flatten(1) for result in results], dim=1)


def _call_nothing(hidden: Tensor) -> Tensor:
    """Stand in for the module's own `forward`, which recurrences never call."""
    raise NotImplementedError


def _single_tokens(count: int, is_prompt: bool) -> RecurrentBatch:
    """Return a batch of requests with one pending token each."""
    ones, rows = np.ones(count, dtype=np.int64), np.arange(count, dtype=np.int64)
    return RecurrentBatch(
        slots=rows,
        pending=ones,
        prompt=ones * is_prompt,
        nodes=ones * 0,
        columns=rows[:, None],
        parents=-ones[:, None],
        trees=[EMPTY_TREE] * count,
    )
