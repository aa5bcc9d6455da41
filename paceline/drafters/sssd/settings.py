"""Define the settings of the `sssd` drafter.

docs/development/design-notes.md lists the tokens per step with these values. They were measured on
recorded answers from three models (chat, maths and class completion) and from
SmolLM2-135M-Instruct.
"""

from __future__ import annotations

# Trees.
MAX_NODES = 512  # Upper limit of the option `max_nodes`.
TREE_NODES = 7  # Nodes of a tree without the budget; with the root 8 tokens, which suit kernels.
BATCH_NODES = 24  # Nodes of all trees in a batch without the budget.
MIN_PATH_CONFIDENCE = 0.002  # Paths that are less likely are dropped.
REQUESTS_PER_THREAD = 4  # Requests of a batch from which on another thread helps.

# Matches in the request.
LONGEST = 32  # Maximum match length in tokens; longer matches count as this long.
NGRAM_SIZES = (1, 2, 4, 8)  # Lengths of the n-grams whose positions are linked, in tokens.
ROOT_LINKS = 64  # Links followed per n-gram size at the root.
NODE_LINKS = 16  # Links followed per n-gram size at any other node.
ENOUGH_REQUEST = 48  # Matches in the request after which shorter ones are not looked for.
MIN_ROOM = 512  # Tokens that the index of a request has room for at first.
BUCKETS_PER_TOKEN = 2  # Hash buckets per token of room; a power of two, as the room is.

# Matches in the datastore.
STORE_SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)  # Lengths of the suffixes that are looked up.
FIRST_SIZE = 3  # Index of the suffix length that is looked up first.
ENOUGH_STORE = 50  # Matches at the root after which shorter suffixes are not looked up.
ROOT_SAMPLES = 64  # Matches sampled per suffix at the root.
NODE_SAMPLES = 12  # Matches sampled per suffix at any other node.

# Pointers of the nodes below the root.
MAX_ADVANCED = 64  # Pointers that a node takes over from its parent.
MIN_REQUEST = 1  # A node with fewer pointers into the request looks for shorter matches.
MIN_STORE = 1  # A node with fewer pointers into the datastore looks for shorter matches.
MAX_NODE_LOOK_UPS = 1  # Nodes of a tree that may search the datastore again.
POINTERS_PER_NODE = 80  # Room for pointers per node.
SPARE_POINTERS = 512  # Room for pointers of a tree in addition.
CHILDREN_PER_NODE = 64  # Room on the frontier per node.
SPARE_CHILDREN = 256  # Room on the frontier in addition.

# Weak matches.
STRONG_MATCH = 4  # Length of a match from which on a node gets no weak matches, in tokens.
SKIP_LINKS = 16  # Links followed after a skipped token.
SKIP_SAMPLES = 32  # Matches sampled in the datastore after a skipped token.
RELATION_REACH = 10  # Distance within which a relation is looked for, in tokens.
MAX_RELATED = 3  # Tokens in relation that are added to a node.
COPY_MATCH = 4  # Length of a match from which on its text counts as copied, in tokens.
NEAR_COPY = 48  # Distance within which a shorter match moves the copied position, in tokens.

# Match statistics.
# Bands of match lengths: 1, 2, 3, 4-5, 6-8, 9-15, 16 and more tokens.
BAND_STARTS = (1, 2, 3, 4, 6, 9, 16)
MAX_TOKENS = 192  # Different tokens counted after a node.
MAX_DISTANCE = 1023  # Maximum distance from the copied text, in tokens; larger ones count so.
MANY_TOKENS = 12  # Different tokens above which rare ones are not scored.

# Scoring network. The weights in calibration.json were fitted with these values.
HIDDEN = 16  # Units of the hidden layer.
ESCAPE = 0.7  # Weight of shorter matches relative to one count of the longer ones (as in PPM).
SHARE_FLOOR = 0.01  # Added to a share and to its complement before the log odds.
NEVER = 8.0  # Age of a token that the request does not have, as log(1 + tokens).

# Running means of a request, updated after each step.
INITIAL_ACCEPTED = 1.0  # Accepted draft tokens per step before the first step.
INITIAL_HITS = 0.4  # Acceptance rate of each source before the first step.
MEAN_RATE = 0.15  # Weight of the newest step.

# Top tokens of the target's last logits, by rank: the share of positions at which the token follows
# the newest token. Fitted on 40 answers each of SmolLM2-135M-Instruct and Gemma 3 270M.
TOP_TOKEN_CONFIDENCE = (0.07, 0.04, 0.035, 0.03, 0.02, 0.015, 0.012)

# Recent answers in memory.
CACHE_TOKENS = 1 << 18  # Default of the option `answer_cache_tokens`.
MAX_CACHE_TOKENS = 1 << 20  # Its upper limit.
JOINT = 3  # Last tokens of the prompt that are stored with an answer.
GROWTH_SHARE = 4  # A shard is sorted again once it has grown by one part in this number.
MIN_NEW_TOKENS = 64  # New tokens that are worth a sort of the recent answers.
MIN_FINISHED_TOKENS = 1024  # Finished tokens that are worth a sort of the older answers.
