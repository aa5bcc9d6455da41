"""Define the values that attention functions read in every forward pass.

A view of a model (`paceline.model.model_view`) owns one `AttentionState` and gives it to its
modules. The attention functions find it in the module that calls them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import nn

from paceline.attention.tree import TreeVisibility
from paceline.backend.attention_metadata import AttentionMetadata

BY_SDPA, BY_POSITION = "paceline_sdpa", "paceline"  # names in transformers' table

STATE = "paceline_state"
"""Attribute of a view's modules that holds the state of the view."""


@dataclass(slots=True)
class AttentionState:
    """Attention inputs of one forward pass.

    Attributes:
        num_causal: Number of leading columns with causal attention, because they belong to a
            prompt and the cache is empty. Default 0.
        metadata: Keys of each row by position; None for keys in the order of their cache
            positions.
        trees: Visibility of the columns, keyed by the address of a placeholder mask. Empty if
            forward passes use real masks.
    """

    num_causal: int = 0
    metadata: AttentionMetadata | None = None
    trees: dict[int, TreeVisibility] = field(default_factory=dict)


_NO_STATE = AttentionState()


def attention_state(module: nn.Module) -> AttentionState:
    """Return the state of a module's view, or a default state outside of views."""
    state: AttentionState = vars(module).get(STATE, _NO_STATE)
    return state
