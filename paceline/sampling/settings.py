"""Define the constants of sampling, and explain their values."""

from __future__ import annotations

# Temperatures below this one shift the scores before the division, so that none overflows.
MIN_PLAIN_TEMPERATURE = 1e-3

# Most likely tokens that truncation sorts first. The nucleus is nearly always among them.
SORTED_TOKENS = 128

# On a device, whether they were enough is known only after the draw, which is then repeated. CUDA
# sorts up to this number in one block.
DEVICE_SORTED_TOKENS = 1024

# Factor by which truncation sorts more tokens if they were not enough.
SORTED_GROWTH = 16

# Bounds of a divisor of logits: float32 overflows not far outside.
MIN_DIVISOR, MAX_DIVISOR = 1e-30, 1e30

# Number of scores (of 4 bytes) that penalties change at once on a CPU; they fit into its cache.
CPU_PART_SCORES = 1 << 18
