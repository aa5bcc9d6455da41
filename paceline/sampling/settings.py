"""Define the sampling constants, and explain their values."""

from __future__ import annotations

# For temperatures below this one, the scores are shifted before the division, to avoid overflow.
MIN_PLAIN_TEMPERATURE = 1e-3

# Number of most likely tokens that top_k, top_p and min_p sort at first. They nearly always include
# the nucleus.
SORTED_TOKENS = 128

# The same number on a device. There, the host learns only after the draw whether it was large
# enough; if not, the draw is repeated. CUDA sorts up to this number in one block.
DEVICE_SORTED_TOKENS = 1024

# Factor by which the number of sorted tokens grows if it was too small.
SORTED_GROWTH = 16

# Bounds of a divisor of logits. Divisors outside these bounds may overflow float32.
MIN_DIVISOR, MAX_DIVISOR = 1e-30, 1e30

# Number of scores (4 bytes each) that penalties change at once on a CPU, so that they fit into its
# cache.
CPU_PART_SCORES = 1 << 18
