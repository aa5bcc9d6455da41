"""Constants for sampling, each with its unit and the reason for its value."""

from __future__ import annotations

# Temperatures below this one shift the scores before the division, so that none overflows.
MIN_PLAIN_TEMPERATURE = 1e-3

# Most likely tokens that truncation sorts first. The nucleus is nearly always among them.
SORTED_TOKENS = 128

# Bounds of a divisor of logits: float32 overflows not far outside.
MIN_DIVISOR, MAX_DIVISOR = 1e-30, 1e30
