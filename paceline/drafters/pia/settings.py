"""Define the settings of the `pia` drafter."""

from __future__ import annotations

# Weight of an occurrence in an output. An occurrence in the request's prompt has 1 minus this
# weight.
OUTPUT_WEIGHT = 1e-4
