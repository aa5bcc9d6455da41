"""Define the maximum values of the options of `token_recycling`."""

from __future__ import annotations

MAX_NODES = 256  # Maximum value of the `max_nodes` option.
MAX_DISTRIBUTIONS = 1 << 26  # Maximum value of the `max_distributions` option.
