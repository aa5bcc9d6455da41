"""Define the engine's constants; they affect speed and memory, not answers."""

from __future__ import annotations

# Maximum number of rows with logits for `prompt_logprobs` in a forward pass. Each row takes memory
# for the whole vocabulary: 512 rows of 150,000 float32 logits are 0.3 GB.
MAX_SCORED_ROWS = 512

# Prompts with different lengths share a forward pass if it has at most this many rows per token.
MAX_PADDING_RATIO = 1.25

# Maximum number of drafters that requests name (`SamplingParams.speculation`), in addition to the
# engine's default. Each may hold a draft model in memory.
MAX_NAMED_DRAFTERS = 16

# Number of cache positions that slots of equal length gain before answers need them; doubled each
# time. Growing may copy the cache on a GPU.
CACHE_GROWTH_POSITIONS = 512

# Number of cache positions reserved per request for draft nodes. Larger trees take positions beyond
# the limit.
SPARE_NODE_POSITIONS = 32

# Number of positions by which an answer may grow right after admission, so that the engine does not
# soon preempt the request again.
ADMISSION_HEADROOM = 128

# Number of cache positions per slot without a memory limit: more than any text needs.
UNLIMITED_POSITIONS = 1 << 40

# Shortest common prefix worth copying, in tokens. Computing fewer tokens is as fast as looking them
# up.
MIN_PREFIX_TOKENS = 16

# Share of the available memory that the KV cache may take, if `cache_gib` is not given.
CACHE_MEMORY_SHARE = 0.8

# Share of a kept prefix that a prompt must match to take over its slot. Other prompts copy the
# common part.
INHERITED_SHARE = 0.9

# Number of integers summed at once when ranks in a lookahead-parallel run compare their weights. It
# limits the memory for this check.
CHECKSUM_BLOCK = 1 << 18

# Share of the cache's memory for copies of recurrent states, which let later prompts continue from
# earlier ones. It applies if finished requests stay cached.
CHECKPOINT_SHARE = 0.125

# Memory of the cache in bytes, if no limit is known, of which `CHECKPOINT_SHARE` applies.
UNKNOWN_MEMORY = 1 << 33

# Cache slots of different lengths: a slot that becomes too short grows by its length divided by
# this number, and at least by the following number of positions. It may have to move then.
REGION_GROWTH_DIVISOR = 8
MIN_REGION_GROWTH = 64

# Factor by which the total length of such slots grows. Spare positions make moves rare.
POOL_GROWTH_FACTOR = 1.25

# Share of positions beyond the limit for which such slots have memory: 1 divided by this number.
# Large draft trees use them when all slots are full.
POOL_HEADROOM_DIVISOR = 16
