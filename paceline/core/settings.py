"""Constants that several rooms share. They change time and memory, never an answer."""

from __future__ import annotations

# Most pending tokens of a request in one forward pass (chunked prefill), unless set.
PREFILL_CHUNK = 512
