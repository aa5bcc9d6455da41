"""Define constants that determine the order of summation in Triton kernels."""

from __future__ import annotations

from typing import NamedTuple


class Launch(NamedTuple):
    """Block size and thread count of the attention programs for one head size.

    Attributes:
        keys: Number of keys per block, a divisor of `KEYS_PER_SPLIT`.
        warps: Number of warps per program.
        stages: Number of blocks in flight. With 1, each block is read when it is needed; with 2,
            the next block is prefetched.
    """

    keys: int
    warps: int
    stages: int


# Query rows per program: the minimum number of rows in a tensor-core product.
QUERIES_PER_PROGRAM = 16

# Number of keys per split, which one program reads; a multiple of every block size.
KEYS_PER_SPLIT = 256

# Number of splits whose sums are combined at once.
SPLITS_AT_ONCE = 32

# Launch settings, keyed by bytes per value and maximum head size. With each of them, the programs
# compile for sm_80 and sm_90 without spilling registers.
LAUNCHES = {
    (2, 64): Launch(64, 4, 2),
    (2, 128): Launch(64, 4, 2),
    (2, 256): Launch(32, 4, 2),
    (4, 64): Launch(32, 4, 1),
    (4, 128): Launch(32, 8, 1),
    (4, 256): Launch(16, 4, 1),
}

# Launch settings for larger heads.
WIDE_LAUNCH = Launch(16, 8, 1)

# Number of warps per program that combines splits.
COMBINE_WARPS = 4

# Maximum number of float32 values in the partial sums of a launch.
MAX_PARTIAL_SUMS = 1 << 26

# Every head size and stride that the kernel reads is a multiple of this number of values.
ALIGNMENT = 16


class TreeLaunch(NamedTuple):
    """Tile size and thread count of the tree-attention programs for one head size.

    Attributes:
        queries: Maximum number of query rows per program.
        keys: Number of keys that a program reads at once.
        warps: Number of warps per program.
    """

    queries: int
    keys: int
    warps: int


# Launch settings of tree attention, keyed by bytes per value and maximum head size. With them, the
# programs spill few registers or none on sm_90.
TREE_LAUNCHES = {
    (2, 64): TreeLaunch(64, 64, 4),
    (2, 128): TreeLaunch(64, 64, 4),
    (2, 256): TreeLaunch(32, 32, 4),
    (4, 64): TreeLaunch(16, 64, 4),
    (4, 128): TreeLaunch(16, 32, 8),
    (4, 256): TreeLaunch(16, 16, 8),
}

# Launch settings of tree attention for larger heads.
WIDE_TREE_LAUNCH = TreeLaunch(16, 16, 8)

# Minimum number of keys per split in tree attention.
TREE_MIN_SPLIT_KEYS = 128

# Number of programs per launch of tree attention, three per multiprocessor of an H100. If a launch
# would need more, its splits grow.
TREE_PROGRAMS = 396

# Number of cache positions that a table of paths can list for each query of a bucket, enough for a
# draft tree of this depth.
PATH_WIDTH = 64
