"""Define constants that determine the order of summation in Triton kernels."""

from __future__ import annotations

from typing import NamedTuple


class Launch(NamedTuple):
    """Tile size and threads of the attention programs for one head size.

    Attributes:
        keys: Number of keys per block, a divisor of `KEYS_PER_SPLIT`.
        warps: Number of warps per program.
        stages: Number of blocks in flight. With 1, each block is read when it is needed; with 2,
            the next block is prefetched.
    """

    keys: int
    warps: int
    stages: int


# Query rows of a program: the fewest rows that tensor cores multiply at once.
QUERIES_PER_PROGRAM = 16

# Keys of a split, which one program reads. A multiple of every block.
KEYS_PER_SPLIT = 256

# Splits whose sums are combined at once.
SPLITS_AT_ONCE = 32

# Launches by bytes per number and largest head size, in dims. Each compiles for sm_80 and sm_90
# without spilling registers.
LAUNCHES = {
    (2, 64): Launch(64, 4, 2),
    (2, 128): Launch(64, 4, 2),
    (2, 256): Launch(32, 4, 2),
    (4, 64): Launch(32, 4, 1),
    (4, 128): Launch(32, 8, 1),
    (4, 256): Launch(16, 4, 1),
}

# The launch of wider heads.
WIDE_LAUNCH = Launch(16, 8, 1)

# Warps of a program that combines splits.
COMBINE_WARPS = 4

# Float32 numbers of unfinished sums that a launch may store.
MAX_PARTIAL_SUMS = 1 << 26

# Multiple, in numbers, of dims and strides that the kernel reads.
ALIGNMENT = 16


class TreeLaunch(NamedTuple):
    """Tile size and threads of the tree-attention programs for one head size.

    Attributes:
        queries: Maximum number of query rows per program.
        keys: Number of keys that a program reads at once.
        warps: Number of warps per program.
    """

    queries: int
    keys: int
    warps: int


# Launches of tree attention by bytes per number and largest head size, in dims. They spill few
# registers or none on sm_90.
TREE_LAUNCHES = {
    (2, 64): TreeLaunch(64, 64, 4),
    (2, 128): TreeLaunch(64, 64, 4),
    (2, 256): TreeLaunch(32, 32, 4),
    (4, 64): TreeLaunch(16, 64, 4),
    (4, 128): TreeLaunch(16, 32, 8),
    (4, 256): TreeLaunch(16, 16, 8),
}

# The launch of wider heads.
WIDE_TREE_LAUNCH = TreeLaunch(16, 16, 8)

# Fewest keys of a split in tree attention.
TREE_MIN_SPLIT_KEYS = 128

# Programs of a launch of tree attention beyond which splits grow: three per multiprocessor of an
# H100.
TREE_PROGRAMS = 396

# Cache positions that a table of paths can list for each query of a bucket: the depth of a draft
# tree.
PATH_WIDTH = 64
