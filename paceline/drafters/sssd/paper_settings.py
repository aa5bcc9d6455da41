"""Define the constants of `sssd:fusion=paper`.

The values are those of the authors' code (Marzollo et al. 2024).
"""

from __future__ import annotations

PREFIX = 4  # Maximum length of a suffix that is looked up in either source, in tokens.
STORE_ENTRIES = 100  # Maximum number of matches read from the datastore per suffix.
ENOUGH_CONTINUATIONS = 50  # With this many continuations, no shorter suffix is looked up.
WINDOW = 8  # Number of request tokens that are stored together, including the match.
BORDER = 3  # Windows that start in the last BORDER tokens of the prompt belong to the output.
REQUEST_SCALE = 0.6  # Weight of the share of a token in the request, at the first level.
DAMPENING = 0.6  # Weight of this share at deeper levels, for a match of 0 tokens.
DAMPENING_PER_MATCH = 0.1  # Amount added to DAMPENING per matched token.
# Maximum length of datastore branches by tree size: pairs of maximum nodes and maximum levels.
BRANCH_LENGTHS = ((8, 5), (32, 6), (48, 8))
SHORT_TREE = 5  # In trees of up to SHORT_TREE nodes, a branch may use all nodes but one.
MAX_BRANCH = 10  # Maximum number of levels in larger trees.
# For matches of 1 to 4 tokens: index in NGRAM_SIZES of the chain that contains them.
CHAIN_OF_MATCH = (0, 1, 1, 2)
MAX_LINKS = 1024  # Maximum number of links followed per chain.
DEPTH_BONUS = 1e-9  # Amount added to a score per level, so that deeper candidates win ties.
