"""Run a recurrent mixer's own `forward` with recurrences that follow draft trees.

In transformers, the `forward` method of a recurrent mixer computes projections, gates and norms
with submodules. For the recurrence itself, `forward` calls global functions of its Python module,
which have the same names in all models. A `RecurrenceMixer` runs the code of `forward` with other
globals, in which these names refer to replacement functions. Neither the mixer's class nor its
Python module changes.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import FunctionType, MethodType
from typing import Any

from torch import Tensor, nn

from paceline.backend.overrides import ForwardOverride
from paceline.backend.own_code import OwnCodeOverride
from paceline.kv_cache.state_layer import StateLayer
from paceline.model.mixers.mixer import MixerCall, StateUpdate, own_forward
from paceline.model.mixers.recurrence_call import RecurrenceCall, token_tree
from paceline.model.mixers.recurrent_batch import RecurrentBatch
from paceline.model.mixers.settings import ACTIVATIONS

# Replacements for the functions that forward methods call, by name. Without a cache, a forward
# method calls these functions, and none of those for single tokens.
_RECURRENCES: dict[str, Callable[..., Any]] = {
    "causal_conv1d_fn": RecurrenceCall.convolve,
    "torch_chunk_gated_delta_rule": RecurrenceCall.delta_rule,
    "chunk_kimi_delta_attention": RecurrenceCall.delta_rule,
    "mamba2_chunk_scan": RecurrenceCall.state_space,
    "mamba_selective_scan": RecurrenceCall.selective_scan,
}
# Functions that the same forward methods call only for single tokens or for training.
_UNUSED = frozenset(
    {
        "causal_conv1d_update",
        "torch_recurrent_gated_delta_rule",
        "recurrent_kimi_delta_attention",
        "mamba2_selective_state_update",
        "mamba2_split_conv1d_scan_combined",
        "mamba_selective_state_update",
        "mamba_inner_fn",
    }
)
_KNOWN = _UNUSED | _RECURRENCES.keys()


class RecurrenceMixer:
    """Runs a recurrent mixer along draft trees.

    Each token of a tree continues from the recurrent state after its parent.

    Args:
        module: Copy of the mixer in the `ModelView`.
        forward: `forward` method of the module's class, without decorators.
        override: Replacement for functions that the module's own code calls; None means torch's
            functions.
    """

    folds = True

    def __init__(
        self, module: nn.Module, forward: FunctionType, override: ForwardOverride | None = None
    ) -> None:
        functions = {
            name: self._calling(function)
            for name, function in _RECURRENCES.items()
            if name in forward.__code__.co_names
        }
        names = {**forward.__globals__, **functions}
        own = FunctionType(
            forward.__code__, names, forward.__name__, forward.__defaults__, forward.__closure__
        )
        own.__kwdefaults__ = forward.__kwdefaults__
        self._forward = MethodType(own, module)
        self._calls: Callable[[], AbstractContextManager[object]] = (
            override.calls if isinstance(override, OwnCodeOverride) else nullcontext
        )
        self._first: int = getattr(module, "conv_idx", 0)
        self._call: RecurrenceCall | None = None

    def _calling(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a wrapper that passes the current `RecurrenceCall` as the first argument."""

        def recurrence(*args: Any, **kwargs: Any) -> Any:
            return function(self._call, *args, **kwargs)

        return recurrence

    def __call__(
        self, hidden: Tensor, batch: RecurrentBatch, layer: StateLayer, call: MixerCall
    ) -> tuple[Tensor, StateUpdate]:
        """Run the mixer; return its outputs, and an update of the stored states.

        See `Mixer` for the arguments.
        """
        current = self._call = RecurrenceCall(token_tree(batch), layer, self._first)
        try:
            with self._calls():
                output: Tensor = self._forward(hidden)
        finally:
            self._call = None
        return output, _Folds(current)


class _Folds:
    """Advances the recurrent states of one mixer call by the committed tokens."""

    def __init__(self, call: RecurrenceCall) -> None:
        self._tree, self._folds = call.tree, call.folds

    def commit(
        self, layer: StateLayer, batch: RecurrentBatch, accepted: Sequence[Sequence[int]]
    ) -> None:
        """Advance the stored states by the pending tokens and the accepted nodes."""
        for fold in self._folds:
            fold(accepted)


def recurrence_mixer(
    twin: nn.Module, override: ForwardOverride | None = None
) -> RecurrenceMixer | None:
    """Create a `RecurrenceMixer` for a module; return None if it is not supported.

    Args:
        twin: Copy of the mixer in the `ModelView`.
        override: Replacement for functions that the module's own code calls; None means torch's
            functions.
    """
    forward = own_forward(twin)
    if forward is None:
        return None
    if getattr(twin, "activation", None) not in ACTIVATIONS or not _takes_states_only(forward):
        return None
    names = _function_names(forward)
    return RecurrenceMixer(twin, forward, override) if names and names <= _KNOWN else None


def _function_names(forward: FunctionType) -> set[str]:
    """Return the names of the recurrence functions that a `forward` method may call.

    These are the known functions, and those that transformers wraps so that a faster kernel can
    replace them.
    """
    values = forward.__globals__
    return {
        name
        for name in forward.__code__.co_names
        if isinstance(values.get(name), FunctionType)
        and (name in _KNOWN or hasattr(values[name], "__wrapped__"))
    }


def _takes_states_only(forward: FunctionType) -> bool:
    """Return whether a `forward` method requires only the hidden states."""
    _, hidden, *others = inspect.signature(forward).parameters.values()
    optional = inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL
    return hidden.default is hidden.empty and all(
        argument.default is None or argument.kind in optional for argument in others
    )
