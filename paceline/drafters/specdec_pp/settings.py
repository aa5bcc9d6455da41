"""Define the settings of the `specdec_pp` drafter and its acceptance head."""

from __future__ import annotations

THRESHOLD = 0.7  # The paper's recommendation, for a head without stored threshold costs.
# Time of a target forward pass over a draft forward pass before the first measurement. The pair of
# the paper has 4.8.
INITIAL_TIME_RATIO = 5.0
FIRST_MEASURED_STEPS = 8  # Steps before measured times are used for the first time.
MEASURED_STEPS = 32  # Steps between two later updates, and steps that a median covers.
MAX_BLOCKS = 4  # Maximum number of residual blocks in a head.
MIN_OTHER_SHARE = 1e-6  # Minimum share of all other tokens, which float32 still resolves.
