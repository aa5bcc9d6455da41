"""Settings of forward passes with fixed shapes, with units and reasons."""

from __future__ import annotations

# Columns of a bucket: pending tokens and draft nodes of a request. A forward pass of a large model
# takes about as long for 64 columns as for one on the GPUs of the roofline tables.
COLUMNS = (1, 4, 8, 16, 32, 64)

# Maximum number of columns of all rows in a bucket; larger forward passes keep their own shape.
# It bounds the memory of the logits that graphs share.
MAX_TOKENS = 1024

# Smallest number of cache positions that attention reads in a bucket. Larger buckets have 1.5 times
# or twice as many, and so on, so that at most half of the positions are masked.
MIN_POSITIONS = 256

# Number of uses of a bucket before its forward pass is captured. A capture costs several forward
# passes, and some buckets are used only once.
USES_BEFORE_CAPTURE = 2

# Score of a position that a column does not see. Its weight is exactly 0, and the score times
# log2(e), which attention kernels compute, is still a float32.
MASKED_SCORE = -1e30
