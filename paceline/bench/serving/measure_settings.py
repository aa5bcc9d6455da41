"""Define the settings of load measurements."""

from __future__ import annotations

WARMUP_TOKENS = 8  # Tokens of the untimed answers.
MIN_PROMPT_TOKENS = 16  # Context tokens that must be left for a prompt.
ARRIVAL_SEED = 0  # Random seed of the arrival times.
SERVER_TIMEOUT_SECONDS = 60.0  # Time to wait for the server to stop.
