"""Define the settings of the `sssd` drafter.

The values were chosen by replaying recorded answers of four models: SmolLM2-135M-Instruct, and the
three models that the module `calibration` mentions. The page docs/development/design-notes.md lists
the number of tokens per step for several tree sizes.
"""

from __future__ import annotations

# Trees.
MAX_NODES = 512  # Upper limit of the option `max_nodes`.
# Maximum nodes of a tree without the budget. With the root, they are 8 tokens, a fast batch size.
TREE_NODES = 7
BATCH_NODES = 24  # Maximum total nodes of the trees in a batch without the budget.
MIN_PATH_CONFIDENCE = 0.002  # Less likely paths are not proposed.
REQUESTS_PER_THREAD = 4  # A batch is split among threads, with at least this many requests each.

# Matches in the request.
LONGEST = 32  # Maximum counted match length, in tokens; the rest of a longer match is ignored.
NGRAM_SIZES = (1, 2, 4, 8)  # Lengths of the indexed n-grams, in tokens.
ROOT_LINKS = 64  # Maximum number of links followed per n-gram size at the root.
NODE_LINKS = 16  # Maximum number of links followed per n-gram size at any other node.
ENOUGH_REQUEST = 48  # With this many matches in the request, no shorter matches are searched for.
MIN_ROOM = 512  # Initial capacity of a request's index, in tokens.
BUCKETS_PER_TOKEN = 2  # Hash buckets per token of capacity; both numbers are powers of two.

# Matches in the datastore.
STORE_SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)  # Lengths of the suffixes that are looked up.
FIRST_SIZE = 3  # Index of the suffix length that is looked up first.
ENOUGH_STORE = 50  # With this many matches at the root, no shorter suffixes are looked up.
ROOT_SAMPLES = 64  # Maximum number of matches sampled per suffix at the root.
NODE_SAMPLES = 12  # Maximum number of matches sampled per suffix at any other node.

# Pointers of the nodes below the root.
MAX_ADVANCED = 64  # Maximum number of pointers that a node inherits from its parent.
MIN_REQUEST = 1  # A node with fewer pointers into the request searches for shorter matches.
MIN_STORE = 1  # A node with fewer pointers into the datastore searches for shorter matches.
MAX_NODE_LOOK_UPS = 1  # Maximum number of nodes per tree that may search the datastore again.
POINTERS_PER_NODE = 80  # Capacity of the pool per node, in pointers.
SPARE_POINTERS = 512  # Additional capacity of the pool, in pointers.
CHILDREN_PER_NODE = 64  # Capacity of the frontier per node, in candidates.
SPARE_CHILDREN = 256  # Additional capacity of the frontier, in candidates.

# Weak matches.
STRONG_MATCH = 4  # Minimum length of a match that makes weak matches unnecessary, in tokens.
SKIP_LINKS = 16  # Maximum number of links followed for matches that skip the newest token.
SKIP_SAMPLES = 32  # Maximum number of datastore matches sampled that skip the newest token.
RELATION_REACH = 10  # Maximum distance between a token and its repetition, in tokens.
MAX_RELATED = 3  # Maximum number of related tokens that are added to a node.
COPY_MATCH = 4  # Minimum length of a match whose text counts as copied, in tokens.
NEAR_COPY = 48  # Maximum distance by which a shorter match moves the copy position, in tokens.

# Match statistics.
# Bands of match lengths: 1, 2, 3, 4-5, 6-8, 9-15, 16 and more tokens.
BAND_STARTS = (1, 2, 3, 4, 6, 9, 16)
MAX_TOKENS = 192  # Maximum number of different tokens counted after a node.
MAX_DISTANCE = 1023  # Maximum distance from the copied text, in tokens; larger ones are reduced.
MANY_TOKENS = 12  # If a node has more different tokens, rare ones are not scored.

# Scoring network. The weights in calibration.json were fitted with these values.
HIDDEN = 16  # Number of units in the hidden layer.
ESCAPE = 0.7  # Weight of shorter matches, as a number of longer matches (as in PPM).
SHARE_FLOOR = 0.01  # Amount added to a fraction and to its complement before taking log odds.
NEVER = 8.0  # Age of a token that does not occur in the request, as log(1 + tokens).

# Running means of a request, updated after each step.
INITIAL_ACCEPTED = 1.0  # Assumed number of accepted draft tokens per step before the first step.
INITIAL_HITS = 0.4  # Assumed acceptance rate of each source before the first step.
MEAN_RATE = 0.15  # Weight of the newest step.

# By rank in the target's last logits: the fraction of positions at which the token of this rank
# follows the newest token. Fitted on 40 answers each of SmolLM2-135M-Instruct and Gemma 3 270M.
TOP_TOKEN_CONFIDENCE = (0.07, 0.04, 0.035, 0.03, 0.02, 0.015, 0.012)

# Recent answers in memory.
CACHE_TOKENS = 1 << 18  # Default of the option `answer_cache_tokens`.
MAX_CACHE_TOKENS = 1 << 20  # Maximum value of the option `answer_cache_tokens`.
JOINT = 3  # Number of the prompt's last tokens that are stored with an answer.
GROWTH_SHARE = 4  # A shard is sorted again once it has grown by 1/GROWTH_SHARE of its size.
MIN_NEW_TOKENS = 64  # Minimum number of new tokens for sorting the second shard again.
MIN_FINISHED_TOKENS = 1024  # Minimum number of finished tokens for sorting the first shard again.
