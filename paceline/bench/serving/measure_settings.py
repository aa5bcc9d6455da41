"""Define the settings of the additional load measurements."""

from __future__ import annotations

WARMUP_TOKENS = 8  # Tokens of the untimed answers.
MIN_PROMPT_TOKENS = 16  # Context tokens that must be left for a prompt.
ARRIVAL_SEED = 0  # Random seed of the arrival times.

TIMED_TURNS = 5  # Second turns that are timed, each with and without prefix reuse.
TURN_TOKENS = 16  # Tokens of the answer and of the text of a second turn.

STREAM_TOKENS = 256  # Tokens of the stream whose gaps are measured.
INTRUSION_PAUSE_SECONDS = 0.5  # Time between prompts that arrive during the stream.

MEMORY_SAMPLE_SECONDS = 5.0  # Time between two samples of the memory.
ABORTED_SHARE = 0.1  # Share of the answers that clients abort after a few chunks.
SERVER_TIMEOUT_SECONDS = 60.0  # Time to wait for the server to stop.
