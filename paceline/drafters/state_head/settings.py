"""Define the constants of `state_head`, including the defaults of its options."""

from __future__ import annotations

MAX_NODES = 24  # Maximum number of draft tokens per step, for one request or a whole batch.
MIN_BATCH_NODES = 3  # Minimum number of nodes per request in a batch, which shares MAX_NODES.
MAX_DEPTH = 8  # Default of `max_depth`; EAGLE-3 uses trees of a similar depth.
BRANCH_THRESHOLD = 0.06  # Default of `branch_threshold`, as in `draft_model`.
STOP_THRESHOLD = 0.5  # Default of `stop_threshold`, as in `draft_model`.
