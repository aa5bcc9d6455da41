"""Constants and option types that several rooms share. They never change an answer."""

from __future__ import annotations

from typing import Literal

# Most pending tokens of a request in one forward pass (chunked prefill), unless set.
PREFILL_CHUNK = 512

# True, False, or "auto": on if a check at load time shows a cost under 5 %.
BatchInvariant = bool | Literal["auto"]
BATCH_INVARIANT: BatchInvariant = "auto"
