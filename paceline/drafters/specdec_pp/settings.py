"""Define the constants of `specdec_pp` and its acceptance head."""

from __future__ import annotations

THRESHOLD = 0.7  # Threshold for heads without stored threshold costs; recommended by the paper.
# Assumed duration of a target forward pass, divided by that of a draft forward pass, before the
# first measurement. In the paper, the ratio is 4.8.
INITIAL_TIME_RATIO = 5.0
FIRST_MEASURED_STEPS = 8  # Number of steps before measured times are used for the first time.
MEASURED_STEPS = 32  # Number of steps between later updates, and of steps that a median covers.
MAX_BLOCKS = 4  # Maximum number of residual blocks in a head.
MIN_OTHER_SHARE = 1e-6  # Minimum total probability of all other tokens, due to float32 precision.
