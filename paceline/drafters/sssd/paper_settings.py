"""Define the settings of the drafter `sssd:fusion=paper`.

The values are those of the authors' code (Marzollo et al. 2024).
"""

from __future__ import annotations

PREFIX = 4  # Longest suffix that is looked up in either source, in tokens.
STORE_ENTRIES = 100  # Matches read from the datastore per suffix.
ENOUGH_CONTINUATIONS = 50  # Continuations after which no shorter suffix is looked up.
WINDOW = 8  # Tokens of the request that are stored together, the match among them.
BORDER = 3  # Last tokens of the prompt that start windows of the output.
REQUEST_SCALE = 0.6  # Factor of a request's share at the first level.
DAMPENING = 0.6  # Factor of a request's share below, for a match of no tokens.
DAMPENING_PER_MATCH = 0.1  # Added to this factor per matched token.
# Branch length of the datastore by tree size: pairs of maximum nodes and maximum levels.
BRANCH_LENGTHS = ((8, 5), (32, 6), (48, 8))
SHORT_TREE = 5  # Nodes up to which a branch may take all nodes but one.
MAX_BRANCH = 10  # Maximum levels of larger trees.
# Index in NGRAM_SIZES of the chain in which matches of 1 to 4 tokens are found.
CHAIN_OF_MATCH = (0, 1, 1, 2)
MAX_LINKS = 1024  # Links followed per chain.
DEPTH_BONUS = 1e-9  # Added to a probability per level, so that ties go to the deeper candidate.
