"""Constants of the Triton kernel, which was never run on hardware or tuned."""

from __future__ import annotations

# Queries of a program: the fewest rows that Triton multiplies at once.
QUERIES_PER_PROGRAM = 16

# Blocks of keys in a split. Another number changes the order of sums.
BLOCKS_PER_SPLIT = 4

# Float32 numbers of unfinished sums that a launch may store.
MAX_PARTIAL_SUMS = 1 << 26

# Multiple, in numbers, of dims and strides that the kernel reads.
ALIGNMENT = 16
