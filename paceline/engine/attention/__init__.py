"""Attention functions registered with transformers: over draft trees by SDPA, and by position, batch-invariant."""

from paceline.engine.attention.forward import BY_POSITION, tree_attention
from paceline.engine.attention.order import KeyOrder
from paceline.engine.attention.registered import why_not_by_position
from paceline.engine.attention.sdpa import takes_tree_attention

__all__ = ["BY_POSITION", "KeyOrder", "takes_tree_attention", "tree_attention", "why_not_by_position"]
