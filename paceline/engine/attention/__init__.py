"""Attention functions registered with transformers, in force during our forwards only."""

from paceline.engine.attention.sdpa import takes_tree_attention, tree_attention

__all__ = ["takes_tree_attention", "tree_attention"]
