"""Define the constants of the batch-invariance checks."""

from __future__ import annotations

# Maximum cost at which "auto" enables batch invariance, relative to an ordinary forward pass.
MAX_COST = 1.05

# End of a message that says why "auto" leaves batch invariance off.
HOW_TO_ENABLE = "--batch-invariant on (in Python, batch_invariant=True) enables it"

# Largest row count that is probed. No batch-invariant forward pass has more rows.
MAX_ROWS = 1024

# Row counts that are probed. Most modules are probed with the wide counts. Large products and
# experts are probed with the medium counts, and the largest ones with the narrow counts only,
# because more counts would take seconds.
SMALL_COUNTS = tuple(range(1, 17))
MEDIUM_COUNTS = (*SMALL_COUNTS, 17, 24, 31, 32, 33, 48, 63, 65, 96, 127, 129, 257)
WIDE_COUNTS = (*MEDIUM_COUNTS, MAX_ROWS)
NARROW_COUNTS = (1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 33)

# Maximum numbers of weights for which a module is probed with the wide or medium counts.
MAX_WIDE_WEIGHTS = 1 << 20
MAX_MEDIUM_WEIGHTS = 1 << 24

# Largest row count of the repeated probes, which use other random rows.
MAX_REPEATED_ROWS = 33

# Number of repeated probes for each module that is not a matrix product. They take almost no time.
NUM_REPEATS = 24

# Minimum for the largest row count of a usable class. A smaller class has no room for drafts or a
# batch.
MIN_CLASS_ROWS = 32

# Fixed number of rows in every matrix product if no class is wide enough. Up to this number,
# reading the weights takes longer than multiplying.
FIXED_ROWS = 64

# Fixed numbers of rows on CUDA, each with the largest batch for which it is used. On an H100, a
# product of 128 rows takes 1.1 times as long as one row, and a product of 256 rows takes 1.2 times
# as long. Two products of 64 rows take twice as long.
FIXED_ROWS_ON_CUDA = ((2, 64), (8, 128), (1 << 30, 256))

# Row counts up to this one are probed with the first and the last rows, and larger row counts with
# the rows in the middle.
MAX_TWICE_ROWS = 16

# Number of different random rows. It is a prime, so that the repeated rows take every position in a
# kernel's tiles.
DISTINCT_ROWS = 61

# Magnitude of the partial sums in a probe. At this magnitude, float16 neither overflows nor rounds
# the errors to zero.
PARTIAL_SUM = 256.0

# Number of tokens in the forward pass that observes the modules. Few tensor axes have this size, so
# the token axis can be recognised.
PROBE_TOKENS = 13

# Prefill chunk, in tokens, for the check of whole forward passes. The check's texts of 20 tokens
# then take several chunks.
CHECK_PREFILL_CHUNK = 8

# Number of cached tokens in timed forward passes; fewer if the model's context is shorter.
CONTEXT_TOKENS = 512

# Minimum and maximum number of rounds in which forward passes are timed.
MIN_ROUNDS = 3
MAX_ROUNDS = 16

# Number of rounds in which the matrix products are timed.
PRODUCT_ROUNDS = 4

# Size of the answer whose matrix products are timed: prompt tokens, and decoding steps of one token
# each.
PROMPT_TOKENS = 256
ANSWER_STEPS = 64
