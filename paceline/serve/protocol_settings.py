"""Settings of the HTTP API that have no option."""

from __future__ import annotations

MAX_TOKENS = 16  # Default of max_tokens, as at OpenAI and in vLLM.
MAX_N = 1024  # Limit of n in the schema; `Settings.max_answers` is lower.
NUM_SEEDS = 2**32  # Seeds of requests without a seed are below it.
MIN_LOGPROB = -9999.0  # Stands for minus infinity, which JSON lacks; as in vLLM.
CLIENT_CLOSED = 499  # Status of disconnected clients, in the log only.
BACKLOG = 2048  # Maximum connections that wait to be accepted.
