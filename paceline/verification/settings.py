"""Define the constants of verification, with the reasons for their values."""

from __future__ import annotations

# Number of logit rows converted to log-probabilities at once. Each row needs memory for the whole
# vocabulary.
LOGPROB_ROWS = 64

# Minimum vocabulary size, in tokens, at which sampling a token takes longer than a function call.
# From this size on, sampling only the tokens on the accepted path saves time.
MIN_LAZY_VOCABULARY = 4096
