"""Numbers of the verification room, each with its unit and what it was chosen for."""

from __future__ import annotations

# Rows of logits that become log-probabilities at once; each row takes memory per vocabulary token.
LOGPROB_ROWS = 64

# Vocabulary size in tokens from which on drawing a token costs more than a call does, so that
# drawing only the tokens of the accepted path saves time.
MIN_LAZY_VOCABULARY = 4096
