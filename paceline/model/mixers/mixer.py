"""Define how a recurrent mixer processes pending tokens, trees and stored states.

A mixer is the module that replaces attention, or its projections, in a recurrent layer.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any, Protocol

from torch import Tensor, nn

from paceline.kv_cache.state_layer import StateLayer
from paceline.model.mixers.recurrent_batch import RecurrentBatch

MixerCall = Callable[[Tensor], Tensor]
"""A module's own `forward`, whose input and output have the shape [rows, columns, hidden]."""


def own_forward(twin: nn.Module) -> FunctionType | None:
    """Return the `forward` of a module's class; None if it was replaced or hooked."""
    forward = inspect.unwrap(type(twin).forward)
    hooked = "forward" in vars(twin) or any(hasattr(m, "_hf_hook") for m in twin.modules())
    return None if hooked or not isinstance(forward, FunctionType) else forward


class StateUpdate(Protocol):
    """Advances the stored states of a recurrent mixer once a draft has been verified."""

    def commit(
        self, layer: StateLayer, batch: RecurrentBatch, accepted: Sequence[Sequence[int]]
    ) -> None:
        """Advance the stored states of the batch's slots.

        The states always advance by the pending tokens. If the mixer's `folds` is True, the states
        also advance by the accepted nodes.

        Args:
            layer: Stored states of the mixer's layer.
            batch: Tokens of the forward pass.
            accepted: Accepted nodes of each request, in text order. Pending tokens always count as
                accepted.
        """


class Mixer(Protocol):
    """Runs the recurrent mixer of one layer over a batch of draft trees.

    Attributes:
        folds: Whether a commit adds accepted nodes to the stored states. Otherwise, the next
            forward pass processes the accepted nodes again.
    """

    folds: bool

    def __call__(
        self, hidden: Tensor, batch: RecurrentBatch, layer: StateLayer, call: MixerCall
    ) -> tuple[Any, StateUpdate]:
        """Run the mixer; return its output or outputs, and an update of the stored states.

        Each output has the same rows and columns as the input. The stored states change only when
        the engine commits the update.

        Args:
            hidden: Inputs to the module, [rows, columns, hidden].
            batch: Tokens of the forward pass.
            layer: Stored states of the module's layer.
            call: The module's own `forward`, to which the other arguments of this call are already
                bound.
        """
