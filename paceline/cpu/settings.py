"""Define block sizes, cache sizes and work thresholds of the CPU kernels.

These constants affect neither which numbers a kernel adds, nor the order in which it adds them.
Unless a comment states otherwise, the constants were tuned with the products and attention of
SmolLM2-135M on AMD EPYC servers with AVX2 and AVX512_BF16. The constants are compiled into the
kernels, so `CodeCache` recompiles the kernels when this file changes.
"""

from __future__ import annotations

# Thread team

# Polls without a job before a helper returns to the pool. A poll takes 10 to 40 ns.
MAX_SPINS = 1 << 18
# Polls after which a waiting thread offers its core to another thread.
SPINS_PER_YIELD = 64

# Matrix products

# Sums of one row that a kernel holds at a time: the outputs that a thread takes as a task, or the
# keys of a block of attention. A multiple of 32.
SUMS_PER_ROW = 64
# Weights stored as [inner, outer]: groups of `SUMS_PER_ROW` outputs, and inputs, that are read
# together. A block has 64 KiB in bfloat16 and lies in 64 pages, as many as an L1 TLB maps.
TASKS_PER_BLOCK, INPUTS_PER_BLOCK = 8, 64
# Rows that share one reading of such weights in bfloat16. The sums of 64 outputs then fill 24 of
# the 32 registers.
ROWS_PER_PAIR = 6
# Multiply-adds of a product that are worth waking one sleeping thread.
MULTIPLY_ADDS_PER_PRODUCT_HELPER = 1 << 21
# Bytes of the L1 cache (32 or 48 KiB) that float32 rows and the weights of four outputs may fill.
L1_BYTES = 30_000
# Minimum number of rows that share one reading of the weights, although they exceed `L1_BYTES`.
MIN_ROWS_PER_BLOCK = 6
# Bytes of the L2 cache (1 or 2 MiB) that packed bfloat16 rows may fill.
L2_BYTES_OF_DOTTED_ROWS = 400_000
# Outputs between those that are computed and those that are prefetched, two groups of eight.
OUTPUTS_AHEAD = 16

# Products with packed weights.
# Maximum number of rows that are multiplied while the unpacked weights are in registers.
MAX_FEW_ROWS = 3
# Outputs between those that are unpacked for few rows and those that are prefetched.
PACKED_OUTPUTS_AHEAD = 16
# With more rows: outputs whose weights are unpacked together.
UNPACKED_GROUP = 16
# Bytes of the L1 cache (48 KiB) that unpacked weights may fill.
L1_BYTES_OF_SECTION = 1 << 15

# Matrix products by AMX, tuned on an Intel Xeon with AMX

# Maximum number of blocks of 16 rows that are multiplied with 16 outputs at a time. The kernel
# multiplies more blocks, and fewer than three, with 32 outputs at a time.
MAX_TALL_BLOCKS = 16
# Groups of 16 outputs between those that are computed and those that are prefetched.
TILE_ROWS_AHEAD = 2
# Regions of the weights that are prefetched in parallel: the processor prefetches in each as well.
PREFETCH_STREAMS = 4

# Decoder layers

# Maximum number of rows of a layer that runs in one compiled call. With more rows, the time outside
# the kernels hardly counts, and the memory of the results exceeds the L2 cache.
MAX_LAYER_ROWS = 128

# Attention

# Queries of a tile: as many as fit `SCORES_PER_TILE` scores, but within these bounds. The scores
# should stay in a core's L2 cache; fewer queries would read the keys too often.
SCORES_PER_TILE = 1 << 18
MIN_QUERIES_PER_TILE, MAX_QUERIES_PER_TILE = 64, 512
# Multiply-adds of the scores that are worth waking one sleeping thread.
MULTIPLY_ADDS_PER_ATTENTION_HELPER = 1 << 22
# Multiply-adds of the scores that are worth the help of spinning threads.
MIN_SHARED_MULTIPLY_ADDS = 1 << 17
# AMX: steps of 32 keys whose values are laid out together, which the L1 cache holds.
STEPS_PER_SECTION = 8

# Other kernels

# Logits whose maximum the top-k search computes first, to skip blocks. A multiple of 8.
TOP_K_BLOCK = 64
# Maximum relative difference of two RMS norms by the same formula, which may add or round in
# another order.
NORM_TOLERANCE_FLOAT32, NORM_TOLERANCE_BFLOAT16 = 1e-5, 2**-6

# Recurrences

# Addend of the sum of squares by which keys are normalised, as in flash-linear-attention.
NORM_EPS = 1e-6
# Softplus of a larger number is the number itself, as in torch.
SOFTPLUS_LINEAR = 20.0
# Multiply-adds of a recurrence that are worth waking one sleeping thread.
MULTIPLY_ADDS_PER_RECURRENCE_HELPER = 1 << 22
# Multiply-adds of a recurrence that are worth the help of spinning threads.
MIN_SHARED_STEPS = 1 << 16
# Channels of a convolution that a thread takes as a task. A multiple of 8.
CHANNELS_PER_TASK = 512
