"""Define the constants of `pia` that are not options."""

from __future__ import annotations

# Weight of an occurrence in an output. The weight of an occurrence in the request's prompt is 1
# minus this value.
OUTPUT_WEIGHT = 1e-4
