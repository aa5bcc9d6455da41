"""Define the constants of `draft_model` that are not options."""

from __future__ import annotations

MAX_NODES = 24  # Maximum number of draft tokens per step if max_draft_tokens is not set.
MIN_BATCH_NODES = 3  # Minimum number of nodes per request in a batch, which shares MAX_NODES.
FIRST_LENGTH = 5  # Maximum length of the first draft with stop_rule=heuristic, in tokens.
CHOICES = 4  # Number of continuations considered at each node.
LOOKED_UP = 2  # Number of most likely new nodes whose continuations prompt lookup searches for.
# Default of `stop_threshold` for chains, by rule.
CHAIN_STOP_THRESHOLDS = {"product": 0.1, "confidence": 0.4, "entropy": 0.4}
TREE_STOP_THRESHOLD = 0.5  # Default of `stop_threshold` for trees.
BRANCH_THRESHOLD = 0.06  # Default of `branch_threshold` for trees.

# Calibration of first choices by their probability.
BUCKETS = 10  # Number of buckets into which probabilities are divided.
PRIOR_TRIALS = 4  # Number of trials that the prior counts as.
# The prior acceptance rate is the probability raised to this power. With the built-in target and
# draft model, the target accepted 61 %, 81 % and 95 % of the first choices with probabilities of
# 0.45, 0.65 and 0.85.
PRIOR_POWER = 0.6

# Draft models with a different tokenizer.
DRAFT_TOKENS_PER_TOKEN = 2  # Cache positions reserved in the draft model per request token.
# Minimum fraction of the target's tokens that the draft model must share for drafts of shared
# tokens. At 0.94 (Gemma 3 as the draft model for SmolLM2), text drafts have three times as many
# accepted tokens. The draft model then reads its own tokenizer's tokens.
MIN_SHARED_RATE = 0.98
