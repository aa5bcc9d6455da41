"""Define the settings of the `draft_model` drafter."""

from __future__ import annotations

MAX_NODES = 24  # Maximum number of draft tokens without a given length.
MIN_BATCH_NODES = 3  # Minimum number of nodes per request of a batch, which shares MAX_NODES.
FIRST_LENGTH = 5  # Length of the first draft with stop_rule=heuristic, in tokens.
CHOICES = 4  # Continuations considered at each node.
LOOKED_UP = 2  # Likeliest new nodes after which prompt lookup looks for text.
# Default of `stop_threshold` for chains, by rule.
CHAIN_STOP_THRESHOLDS = {"product": 0.1, "confidence": 0.4, "entropy": 0.4}
TREE_STOP_THRESHOLD = 0.5  # Default of `stop_threshold` for trees.
BRANCH_THRESHOLD = 0.06  # Default of `branch_threshold` for trees.

# Calibration of first choices by their probability.
BUCKETS = 10  # Buckets of a probability.
PRIOR_TRIALS = 4  # Trials that the prior counts for.
# The prior acceptance rate is the probability to this power. On the built-in pair, first choices of
# 0.45, 0.65 and 0.85 were accepted in 0.61, 0.81 and 0.95 of the cases.
PRIOR_POWER = 0.6

# Draft models with another tokenizer.
DRAFT_TOKENS_PER_TOKEN = 2  # Cache positions of the draft model per token of a request.
# Minimum share of the target's tokens that the draft model must have for drafts of common tokens.
# With 0.94 (Gemma 3 as a draft model of SmolLM2), drafts of text have three times as many accepted
# tokens, because the draft model reads its own tokens.
MIN_SHARED_RATE = 0.98
