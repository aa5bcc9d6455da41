"""Define the inputs of a forward pass beyond the arguments of the model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn import functional

from paceline.attention.forward import STATE, AttentionState
from paceline.model.mixers.seam import RecurrentPass
from paceline.model.rotary import TextLengths

Linear = Callable[[Tensor, Tensor, Tensor | None], Tensor]
"""Multiplies rows [..., inner] by a weight [outer, inner], and adds a bias [outer] or None."""


@dataclass(frozen=True, slots=True)
class TargetStates:
    """The target's hidden states for tokens in a forward pass of the draft model.

    Attributes:
        at: Row and column of each token whose target states are known, int64 [2, n].
        states: Hidden states of these tokens, [n, 1 + layers, hidden size of the target]. The state
            after the final norm comes first, followed by the inputs to the captured layers.
    """

    at: Tensor
    states: Tensor


@dataclass(slots=True)
class ForwardState(AttentionState):
    """Inputs of a forward pass that are not arguments of the model.

    Each `ModelView` owns one such object, and the model runner sets its fields before each forward
    pass.

    Attributes:
        implementation: Name of the attention function that the model calls; None means the
            function that the model's configuration names.
        linear: Function that multiplies rows by a weight outside an `nn.Linear` module. Default:
            torch's function.
        target_states: Target states that a draft model reads, or None.
        reduced_logits: Whether an LM head with a reduced vocabulary returns logits for that
            vocabulary, [..., kept], rather than for the whole vocabulary. Default False.
        folds: Whether every recurrent mixer adds accepted nodes to its stored states at a commit.
            True (default) if the model has no mixers.
        recurrent: Tokens and states for the recurrent mixers; None means that the mixers run as in
            transformers.
        text_lengths: Text lengths that determine rotary frequencies; None if the frequencies do
            not depend on text length.
    """

    implementation: str | None = None
    linear: Linear = functional.linear
    target_states: TargetStates | None = None
    reduced_logits: bool = False
    text_lengths: TextLengths | None = None
    folds: bool = True
    recurrent: RecurrentPass | None = None


class StateReader(nn.Module):
    """Base class of modules that read the `ForwardState` of their `ModelView`."""

    @property
    def state(self) -> ForwardState:
        """Forward state of the module's `ModelView`; outside a view, the default state."""
        state: ForwardState = vars(self).get(STATE, _NO_STATE)
        return state


_NO_STATE = ForwardState()
