"""Constants of the engine. They change time and memory, never an answer."""

from __future__ import annotations

# Rows of a forward pass that have logits for `prompt_logprobs`. Each row takes memory for the whole
# vocabulary: 512 rows of 150,000 float32 logits are 0.3 GB.
MAX_SCORED_ROWS = 512

# Prompts of different lengths share a forward pass while it has at most this many rows per token.
MAX_PADDING_RATIO = 1.25

# Drafters that requests name (`SamplingParams.speculation`), besides the engine's own. Each may
# hold a draft model in memory.
MAX_NAMED_DRAFTERS = 16

# Cache positions allocated before answers need them; doubled each time. Growing copies the cache.
CACHE_GROWTH_POSITIONS = 512

# Cache positions reserved per request for draft nodes. Larger trees make the cache grow once.
SPARE_NODE_POSITIONS = 32

# Positions that an answer may grow by right after admission, so that the engine does not preempt
# the request again soon.
ADMISSION_HEADROOM = 128

# Cache positions of a slot without a memory limit: more than any text has.
UNLIMITED_POSITIONS = 1 << 40

# Shortest common prefix worth copying, in tokens. Computing fewer tokens is as fast as a lookup.
MIN_PREFIX_TOKENS = 16

# Share of the available memory that the KV cache may take, if `cache_gib` is not given.
CACHE_MEMORY_SHARE = 0.8

# Share of a kept prefix that a prompt must have in common with it to take over its slot. Other
# prompts copy the common part.
INHERITED_SHARE = 0.9

# Integers that the ranks of a lookahead-parallel run sum at once, to bound the memory of the check
# that all ranks have the same weights.
CHECKSUM_BLOCK = 1 << 18
