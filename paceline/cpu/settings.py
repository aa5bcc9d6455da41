"""Define block sizes, cache sizes and work thresholds of the CPU kernels.

Sizes and thresholds do not affect the results, because they change neither the numbers that a
kernel adds nor the order of the additions. Unless a comment states otherwise, the constants were
tuned with the matrix products and attention of SmolLM2-135M on AMD EPYC servers with AVX2 and
AVX512_BF16. They are compiled into the kernels, so `CodeCache` recompiles the kernels when this
file changes.
"""

from __future__ import annotations

# Thread team

# Number of polls without a job after which a helper thread returns to the pool. A poll takes 10 to
# 40 ns.
MAX_SPINS = 1 << 18
# Number of polls after which a waiting thread yields its core to another thread.
SPINS_PER_YIELD = 64

# Matrix products

# Number of sums per row that a kernel computes at a time. These are the outputs in one task of a
# matrix product, or the keys in one block of attention. A multiple of 32.
SUMS_PER_ROW = 64
# Size of a block of weights stored as [inputs, outputs]: the number of groups of `SUMS_PER_ROW`
# outputs, and the number of inputs. In bfloat16, a block has 64 KiB in 64 memory pages, which is
# the number of pages that an L1 TLB maps.
TASKS_PER_BLOCK, INPUTS_PER_BLOCK = 8, 64
# Number of rows that are multiplied each time such weights are read in bfloat16. With 64 outputs,
# the sums fill 24 of the 32 registers.
ROWS_PER_PAIR = 6
# Number of multiply-adds in a product per sleeping thread that the product wakes.
MULTIPLY_ADDS_PER_PRODUCT_HELPER = 1 << 21
# Bytes of the L1 cache (32 or 48 KiB) that float32 rows and the weights of four outputs may fill.
L1_BYTES = 30_000
# Minimum number of rows that are multiplied each time the weights are read, even if they exceed
# `L1_BYTES`.
MIN_ROWS_PER_BLOCK = 6
# Bytes of the L2 cache (1 or 2 MiB) that packed bfloat16 rows may fill.
L2_BYTES_OF_DOTTED_ROWS = 400_000
# Number of outputs between the computed and the prefetched ones: two groups of eight.
OUTPUTS_AHEAD = 16

# Products with packed weights

# Maximum number of rows that are multiplied while the unpacked weights are in registers.
MAX_FEW_ROWS = 3
# Number of outputs between the unpacked and the prefetched ones, with few rows.
PACKED_OUTPUTS_AHEAD = 16
# Number of outputs whose weights are unpacked together, with more rows.
UNPACKED_GROUP = 16
# Bytes of the L1 cache (48 KiB) that unpacked weights may fill.
L1_BYTES_OF_SECTION = 1 << 15

# Matrix products by AMX, tuned on an Intel Xeon with AMX

# Maximum number of blocks of 16 rows that the kernel multiplies by 16 outputs at a time. If there
# are more blocks, or fewer than three, the kernel multiplies them by 32 outputs at a time.
MAX_TALL_BLOCKS = 16
# Number of groups of 16 outputs between the computed and the prefetched group.
TILE_ROWS_AHEAD = 2
# Number of regions of the weights that are prefetched in parallel. The processor's own prefetcher
# also follows each region.
PREFETCH_STREAMS = 4

# Decoder layers

# Maximum number of rows for which a layer runs in one compiled call. With more rows, the time
# outside the kernels is insignificant, and the results exceed the L2 cache.
MAX_LAYER_ROWS = 128

# Attention

# Maximum number of scores in a query tile, so that they stay in a core's L2 cache. It determines
# the number of queries in a tile, within the bounds below. With fewer queries per tile, the kernel
# would read the keys too often.
SCORES_PER_TILE = 1 << 18
MIN_QUERIES_PER_TILE, MAX_QUERIES_PER_TILE = 64, 512
# Number of multiply-adds in the scores per sleeping thread that attention wakes.
MULTIPLY_ADDS_PER_ATTENTION_HELPER = 1 << 22
# Minimum number of multiply-adds in the scores for which spinning threads help.
MIN_SHARED_MULTIPLY_ADDS = 1 << 17
# With AMX, number of steps (32 keys each) whose values are rearranged together, in the L1 cache.
STEPS_PER_SECTION = 8

# Other kernels

# Number of logits in a block. The top-k search computes each block's maximum, and skips blocks
# whose maximum is too small. A multiple of 8.
TOP_K_BLOCK = 64
# Maximum relative difference between two implementations of the same RMS norm, which may add or
# round in a different order.
NORM_TOLERANCE_FLOAT32, NORM_TOLERANCE_BFLOAT16 = 1e-5, 2**-6

# Recurrences

# Number added to the sum of squares when keys are normalised, as in flash-linear-attention.
NORM_EPS = 1e-6
# Number above which softplus returns its argument, as in torch.
SOFTPLUS_LINEAR = 20.0
# Number of multiply-adds in a recurrence per sleeping thread that the recurrence wakes.
MULTIPLY_ADDS_PER_RECURRENCE_HELPER = 1 << 22
# Minimum number of multiply-adds in a recurrence for which spinning threads help.
MIN_SHARED_STEPS = 1 << 16
# Number of channels in one task of a convolution. A multiple of 8.
CHANNELS_PER_TASK = 512
