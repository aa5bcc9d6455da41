"""Define the values that attention functions read in a forward pass.

A view of a model (`paceline.model.model_view`) owns an `AttentionState` and attaches it to its
modules. An attention function reads the state from the module that calls the function.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor, nn

from paceline.attention.tree import TreeVisibility
from paceline.backend.attention_metadata import AttentionMetadata

BY_SDPA, BY_POSITION = "paceline_sdpa", "paceline"  # names in transformers' table

STATE = "paceline_state"
"""Name of the module attribute that contains the state of the model view."""


GroupedMasks = dict[tuple[int, int, int], tuple[Tensor, Tensor]]


@dataclass(slots=True)
class AttentionState:
    """Attention inputs of one forward pass, in which each column is a token.

    Attributes:
        num_causal: Number of leading columns with causal attention. If the cache is empty, these
            are the prompt's columns. Default 0.
        metadata: Keys of each row, ordered by text position; None if the keys are ordered by cache
            position.
        trees: Keys that each column attends to, indexed by the address of the placeholder mask.
            The model receives this placeholder instead of a real mask. Empty if the model receives
            real masks.
        grouped: Additive masks that `sdpa` has computed in this pass, each together with the mask
            from which it was computed. The index is (address of that mask, number of columns,
            number of query heads per key head). None (default) stores no masks.
    """

    num_causal: int = 0
    metadata: AttentionMetadata | None = None
    trees: dict[int, TreeVisibility] = field(default_factory=dict)
    grouped: GroupedMasks | None = None


_NO_STATE = AttentionState()


def attention_state(module: nn.Module) -> AttentionState:
    """Return the `AttentionState` attached to a module, or a default state.

    Only the modules of a model view have an attached state.
    """
    state: AttentionState = vars(module).get(STATE, _NO_STATE)
    return state
