"""Define the constants of verification, and explain their values."""

from __future__ import annotations

# Number of logit rows converted to log-probabilities at once; each row takes memory per vocabulary
# token.
LOGPROB_ROWS = 64

# Minimum vocabulary size, in tokens, at which sampling a token costs more than a function call.
# From this size, sampling only the tokens on the accepted path saves time.
MIN_LAZY_VOCABULARY = 4096
