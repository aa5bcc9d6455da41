"""Define the settings of heads that draft from the target's hidden states."""

from __future__ import annotations

PREFILL_COLUMNS = 512  # Maximum tokens per text in one forward pass of a head.
CHOICES = 4  # Number of most likely tokens that a head predicts after each node.

# Number of evenly spaced embedding rows to compare with the target's.
SAMPLED_ROWS = 256

# Target layers whose inputs an EAGLE-3 head reads if its configuration lists none, as in EAGLE's
# published code. The head also reads the input of the middle layer.
EAGLE3_FIRST_LAYER, EAGLE3_LAST_LAYER_FROM_END = 2, 3
