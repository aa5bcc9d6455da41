"""Settings of the `prompt_lookup` drafter.

The probabilities were counted on 120 recorded answers of SmolLM2-135M-Instruct; the budget corrects
them while it runs. Columns are lengths of the match: 1, 2, 3, and 4 or more tokens.
"""

from __future__ import annotations

# Probability of the first token of a branch, for the first, second and any later branch.
FIRST_TOKEN = ((0.22, 0.53, 0.62, 0.8), (0.13, 0.19, 0.25, 0.68), (0.06, 0.07, 0.25, 0.7))
# Probability of the later tokens of a branch. Here each row is a length of the match, and each
# column a number of tokens before it in the branch: 1, 2, 3, and 4 or more.
LATER_TOKEN = (
    (0.52, 0.63, 0.74, 0.8),
    (0.6, 0.74, 0.78, 0.88),
    (0.64, 0.75, 0.8, 0.88),
    (0.92, 0.89, 0.88, 0.92),
)
# Probability of the most frequent token, next to 0, 1, and 2 or more branches.
FREQUENT_TOKEN = (0.04, 0.018, 0.022)
FREQUENT_DECAY = 0.1  # The next ones have this probability divided by 1 + FREQUENT_DECAY * rank.
MATCHES_PER_BRANCH = 4  # Matches read per branch, as many are followed by the same tokens.
