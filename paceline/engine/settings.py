"""Define the engine's constants, which affect speed and memory but not answers."""

from __future__ import annotations

# Maximum number of rows in a forward pass that several prompts share, if one of them needs
# `prompt_logprobs`. Each row needs memory for logits over the whole vocabulary: 512 rows of 150,000
# float32 logits need 0.3 GB.
MAX_SCORED_ROWS = 512

# Prompts with different lengths share a forward pass if it has at most this many rows per token.
MAX_PADDING_RATIO = 1.25

# Maximum number of drafters named in requests (`SamplingParams.speculation`), in addition to the
# engine's default. Each of them may keep a draft model in memory.
MAX_NAMED_DRAFTERS = 16

# Number of spare cache positions that equally long slots gain at first when they grow. Later, their
# length doubles each time. Growing may copy the cache on a GPU.
CACHE_GROWTH_POSITIONS = 512

# Number of cache positions reserved per request for draft nodes. Larger trees use positions beyond
# the limit.
SPARE_NODE_POSITIONS = 32

# Number of positions that must be free for the growth of an answer when its request is admitted, so
# that the engine does not preempt the request soon afterwards.
ADMISSION_HEADROOM = 128

# Number of cache positions that stands for "no limit"; no text needs as many.
UNLIMITED_POSITIONS = 1 << 40

# Minimum length of a common prefix that is copied, in tokens. Computing a shorter prefix is as fast
# as copying it.
MIN_PREFIX_TOKENS = 16

# Number of bytes in a unit of `cache_gib`.
GIB = 1 << 30

# Number of tokens in the shortest request: one of the prompt, and one of the answer.
MIN_REQUEST_TOKENS = 2

# Fraction of the available memory that the KV cache may use if `cache_gib` is not given.
CACHE_MEMORY_SHARE = 0.8

# Minimum fraction of a kept request's tokens that a prompt must match to inherit its slot. Other
# prompts copy the common prefix.
INHERITED_SHARE = 0.9

# Number of integers summed at once when ranks in a lookahead-parallel run compare their weights. It
# limits the memory for this comparison.
CHECKSUM_BLOCK = 1 << 18

# Fraction of the cache's memory for copies of recurrent states, from which later prompts continue.
# It applies if finished requests stay cached.
CHECKPOINT_SHARE = 0.125

# Assumed memory limit of the cache in bytes if no limit is known, for `CHECKPOINT_SHARE`.
UNKNOWN_MEMORY = 1 << 33

# Growth of a slot that becomes too short, in a cache whose slots have different lengths. The slot
# grows by its length divided by the first number, and at least by the second number of positions.
# It may have to move.
REGION_GROWTH_DIVISOR = 8
MIN_REGION_GROWTH = 64

# Factor by which the total capacity of such a cache grows. Spare positions make moves rare.
POOL_GROWTH_FACTOR = 1.25

# Such a cache has memory for additional positions beyond the limit: the limit divided by this
# number. Large draft trees use them when all slots are full.
POOL_HEADROOM_DIVISOR = 16
