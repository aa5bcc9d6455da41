"""State of one forward pass, which the modules of a model view read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn import functional

from paceline.attention.forward import STATE, AttentionState
from paceline.model.rotary import TextLengths

Linear = Callable[[Tensor, Tensor, Tensor | None], Tensor]
"""Function of rows [..., inner], a weight [outer, inner] and a bias [outer] or None."""


@dataclass(frozen=True, slots=True)
class TargetStates:
    """Hidden states of the target for tokens of one forward pass of a draft model.

    Attributes:
        at: int64 [2, n], rows and columns of the tokens whose target state is known.
        states: [n, 1 + layers, hidden size of the target].
    """

    at: Tensor
    states: Tensor


@dataclass(slots=True)
class ForwardState(AttentionState):
    """Inputs of one forward pass that are no arguments of the model.

    A view owns one object, which the model runner fills before each forward pass.

    Attributes:
        linear: Matrix product for weights that belong to no `nn.Linear`; default torch's.
        target_states: Target states that a draft model reads; None for none.
        reduced_logits: True if an LM head with a reduced vocabulary returns logits of this
            vocabulary, [..., kept]; False for logits of the whole vocabulary. Default False.
        text_lengths: Text lengths that rotary frequencies follow; None if they follow none.
    """

    linear: Linear = functional.linear
    target_states: TargetStates | None = None
    reduced_logits: bool = False
    text_lengths: TextLengths | None = None


class StateReader(nn.Module):
    """Base class of modules that read the state of their view."""

    @property
    def state(self) -> ForwardState:
        """State of the view; the default if the module is in no view."""
        state: ForwardState = vars(self).get(STATE, _NO_STATE)
        return state


_NO_STATE = ForwardState()
