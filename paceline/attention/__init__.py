"""Register two attention functions with transformers.

One computes attention over draft trees with SDPA. The other is batch-invariant, because it always
sums over the keys in text order.
"""

from paceline.attention.forward import BY_POSITION, BY_SDPA, AttentionState
from paceline.attention.registered import why_not_by_position
from paceline.attention.sdpa import takes_tree_attention
from paceline.backend.attention_metadata import AttentionMetadata

__all__ = [
    "BY_POSITION",
    "BY_SDPA",
    "AttentionMetadata",
    "AttentionState",
    "takes_tree_attention",
    "why_not_by_position",
]
