"""Define the settings of the `token_recycling` drafter."""

from __future__ import annotations

MAX_NODES = 256  # Maximum value of the `max_nodes` option.
MAX_DISTRIBUTIONS = 1 << 26  # Maximum value of the `max_distributions` option.
