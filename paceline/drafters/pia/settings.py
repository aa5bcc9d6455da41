"""Settings of the `pia` drafter."""

from __future__ import annotations

# Weight of an occurrence in an output. An occurrence in the request's prompt has the rest of 1.
OUTPUT_WEIGHT = 1e-4
