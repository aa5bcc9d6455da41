"""Define the settings of heads that draft from the target's hidden states."""

from __future__ import annotations

PREFILL_COLUMNS = 512  # Tokens of each text that one forward pass of a head reads.
CHOICES = 4  # Likeliest continuations that a head predicts for each node.

# Evenly spaced rows of an embedding that are compared with the target's.
SAMPLED_ROWS = 256

# Layers whose inputs an EAGLE-3 head reads if its configuration names none, as in the published
# code. The third layer is the middle one.
EAGLE3_FIRST_LAYER, EAGLE3_LAST_LAYER_FROM_END = 2, 3
