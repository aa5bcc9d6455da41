"""Define the constants of the batch-invariance checks."""

from __future__ import annotations

# Maximum cost at which "auto" enables batch invariance, relative to a usual forward pass.
MAX_COST = 1.05

# End of a message that says why "auto" leaves batch invariance off.
HOW_TO_ENABLE = "--batch-invariant on (in Python, batch_invariant=True) enables it"

# Rows: the largest row count that is probed. No batch-invariant forward pass is larger.
MAX_ROWS = 1024

# Row counts that are probed. Larger matrix products get the medium counts, and products so large
# that more counts would take seconds get the narrow ones. All other modules get the wide counts.
SMALL_COUNTS = tuple(range(1, 17))
MEDIUM_COUNTS = (*SMALL_COUNTS, 17, 24, 31, 32, 33, 48, 63, 65, 96, 127, 129, 257)
WIDE_COUNTS = (*MEDIUM_COUNTS, MAX_ROWS)
NARROW_COUNTS = (1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 33)

# Weights of a matrix product up to which all counts, or the medium ones, are probed.
MAX_WIDE_WEIGHTS = 1 << 20
MAX_MEDIUM_WEIGHTS = 1 << 24

# Rows: the largest count of repeated probes, on other random rows.
MAX_REPEATED_ROWS = 33

# Repeated probes of each module that is not a matrix product. They take almost no time.
NUM_REPEATS = 24

# Rows: minimum size of a class. A smaller class has no space for drafts or a batch.
MIN_CLASS_ROWS = 32

# Rows of every product if no class is wide enough. Up to this number, reading the weights takes
# longer than multiplying.
FIXED_ROWS = 64

# The same on CUDA, by the largest batch up to which it is used. On an H100, 128 rows of a product
# take 1.1 times as long as one row, 256 rows 1.2 times, and two products of 64 rows twice as long.
FIXED_ROWS_ON_CUDA = ((2, 64), (8, 128), (1 << 30, 256))

# Row counts up to this one are probed at both ends of the rows, larger ones in the middle.
MAX_TWICE_ROWS = 16

# Different random rows. A prime, so that repeated rows meet every position of a kernel's tiles.
DISTINCT_ROWS = 61

# Size of the partial sums of a probe: float16 does not overflow there, nor lose the rounding error
# below its smallest number.
PARTIAL_SUM = 256.0

# Tokens of the forward pass in which the modules are observed. An unlikely size of a tensor axis,
# so that the axis of tokens is recognised.
PROBE_TOKENS = 13

# Prefill chunk in tokens of the model that checks whole forward passes, so that its texts of 20
# tokens take several chunks.
CHECK_PREFILL_CHUNK = 8

# Cached tokens in timed forward passes; fewer if the model's context is shorter.
CONTEXT_TOKENS = 512

# Minimum and maximum number of rounds in which forward passes are timed.
MIN_ROUNDS = 3
MAX_ROUNDS = 16

# Rounds in which the matrix products are timed.
PRODUCT_ROUNDS = 4

# The answer whose products are timed: prompt tokens, and steps of one token each.
PROMPT_TOKENS = 256
ANSWER_STEPS = 64
