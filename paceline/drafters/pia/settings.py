"""Define the settings of the `pia` drafter."""

from __future__ import annotations

# Weight of an occurrence in an output. The weight of an occurrence in the request's prompt is 1
# minus this value.
OUTPUT_WEIGHT = 1e-4
