"""Define the settings of fixed shapes, and explain their units and values."""

from __future__ import annotations

# Columns of a bucket: pending tokens and draft nodes of a request. More sizes would mean more
# captures. On an H100, an 8 B model takes 7.4 ms for one column, 8.0 ms for 16 columns and 9.1 ms
# for 64 columns.
COLUMNS = (1, 8, 16, 32, 64)

# Maximum number of columns of all rows in a bucket; larger forward passes keep their own shape.
# The limit bounds the memory for the logits that all graphs share.
MAX_TOKENS = 1024

# Smallest number of tokens in a bucket of packed batches. Each larger bucket has twice as many.
MIN_PACKED_TOKENS = 16

# Smallest number of cache positions that attention reads in a bucket, and the ratio of one bucket
# to the next smaller one. A kernel that reads text lengths from the device skips the positions
# after each text. With a mask, all positions cost time.
MIN_POSITIONS, POSITIONS_RATIO = 256, 2
MIN_POSITIONS_BY_LENGTH, POSITIONS_RATIO_BY_LENGTH = 1024, 4

# Score of a position that a column does not see. Its weight is exactly 0, and the score times
# log2(e), which attention kernels compute, is still a float32.
MASKED_SCORE = -1e30

# Attention reads slots of different lengths only if all head sizes are multiples of this number.
KEY_ALIGNMENT = 16

# Configuration fields of models that compute the keys or values for attention from those in the
# cache: latent attention, and differential attention, which splits the values into halves.
COMPUTED_KEY_FIELDS = ("kv_lora_rank", "lambda_std_dev")
