"""Define the settings of the HTTP API that have no command-line option."""

from __future__ import annotations

MAX_TOKENS = 16  # Default for max_tokens, as in OpenAI's API and vLLM.
MAX_N = 1024  # Limit on n in the schema; `Settings.max_answers` is lower.
NUM_SEEDS = 2**32  # Upper bound (exclusive) of random seeds for requests without a seed.
MIN_LOGPROB = -9999.0  # Represents minus infinity, which JSON lacks; as in vLLM.
CLIENT_CLOSED = 499  # Status that the log shows if the client disconnected.
BACKLOG = 2048  # Maximum number of connections waiting to be accepted.
MESSAGES_PATH = "/v1/messages"  # Path of the API whose error bodies contain a type.
