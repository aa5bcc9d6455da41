"""Define the constants of `ouroboros` that are not options."""

from __future__ import annotations

MIN_ENTRIES = 15  # Minimum capacity of a key, in phrases; extra phrases use only memory.
SHARED_KEYS = 1 << 16  # Maximum number of keys in a pool that all requests share.
# Maximum number of nodes per step in a batch. Every request may have at least the nodes of its
# chain and one phrase.
BATCH_NODES = 64
MIN_PHRASE = 2  # Minimum length of the phrases that inspiration="every" adds, in tokens.
MIN_REACH = 2  # Minimum length to which the budget may limit a draft, in tokens.
CHOICES = 3  # Number of most likely tokens considered per position, including the drafted token.
MIN_ALTERNATIVE = 0.03  # Lowest path probability of drafted alternatives.

# Calibration of nodes by source and probability.
BUCKETS = 10  # Number of buckets into which probabilities are divided.
PRIOR_TRIALS = 6.0  # Number of trials that the prior counts as.
FADING = 1000.0  # Number of trials in a bucket at which the weight of all its trials is halved.
# Prior acceptance rates of nodes for which the draft model computed no probability.
SUFFIX_PRIOR, PHRASE_PRIOR, WITHIN_PRIOR = 0.2, 0.15, 0.6
