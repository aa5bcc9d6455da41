"""Define the settings of the `prompt_lookup` drafter.

All probabilities are acceptance probabilities of draft tokens, fitted to 120 recorded answers of
SmolLM2-135M-Instruct. At run time, the draft budget corrects these probabilities. The columns of
each table correspond to match lengths of 1, 2, 3, and 4 or more tokens, unless a comment says
otherwise.
"""

from __future__ import annotations

# Probability of a branch's first token, for the first, second and any later branch.
FIRST_TOKEN = ((0.22, 0.53, 0.62, 0.8), (0.13, 0.19, 0.25, 0.68), (0.06, 0.07, 0.25, 0.7))
# Probability of a branch's later tokens. Here, rows correspond to match lengths, and columns to the
# number of preceding tokens in the branch: 1, 2, 3, and 4 or more.
LATER_TOKEN = (
    (0.52, 0.63, 0.74, 0.8),
    (0.6, 0.74, 0.78, 0.88),
    (0.64, 0.75, 0.8, 0.88),
    (0.92, 0.89, 0.88, 0.92),
)
# Probability of the most frequent token, alongside 0, 1, and 2 or more branches.
FREQUENT_TOKEN = (0.04, 0.018, 0.022)
# The probability of less frequent tokens is divided by 1 + FREQUENT_DECAY * rank.
FREQUENT_DECAY = 0.1
# Number of matches read per branch; several matches often have the same continuation.
MATCHES_PER_BRANCH = 4
# Number of cached results of `_frequent_confidence`, one per number of branches and of tokens.
CACHED_CONFIDENCES = 128
