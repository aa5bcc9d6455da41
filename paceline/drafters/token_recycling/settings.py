"""Settings of the `token_recycling` drafter."""

from __future__ import annotations

MAX_NODES = 256  # Upper limit of the option `max_nodes`.
MAX_DISTRIBUTIONS = 1 << 26  # Upper limit of the option `max_distributions`.
