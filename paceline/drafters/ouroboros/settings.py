"""Define the settings of the `ouroboros` drafter."""

from __future__ import annotations

MIN_ENTRIES = 15  # Minimum number of phrases per key; they cost memory only.
SHARED_KEYS = 1 << 16  # Keys of a pool that all requests share.
# Nodes per step for all requests. Each request has room for its chain and one phrase in any case.
BATCH_NODES = 64
MIN_PHRASE = 2  # Minimum tokens of a phrase that the rule "every" adds.
MIN_REACH = 2  # Minimum length of a draft that the budget has cut, in tokens.
CHOICES = 3  # Choices of the draft model per token, the drafted one included.
MIN_ALTERNATIVE = 0.03  # Minimum path probability of an alternative.

# Calibration of nodes by source and probability.
BUCKETS = 10  # Buckets of a probability.
PRIOR_TRIALS = 6.0  # Trials that the prior counts for.
FADING = 1000.0  # Trials of a bucket after which older trials count half.
# Prior acceptance rates of nodes without a probability of the draft model.
SUFFIX_PRIOR, PHRASE_PRIOR, WITHIN_PRIOR = 0.2, 0.15, 0.6
