"""Define the settings for running models, and explain their units and values."""

from __future__ import annotations

# Context length, in tokens, of a model whose configuration does not specify one.
UNBOUNDED_CONTEXT = 1 << 30

# Weights per tensor in a model fingerprint. A different number would invalidate stored ones.
FINGERPRINT_SAMPLES = 64

# Rows and columns of the embedding in a sketch. Different numbers would invalidate stored ones.
SKETCH_SIZE = 64

# Cosine similarities of two models' embedding sketches. Below the first value, the models are
# different; from the second value upwards, no warning is needed. Measured with blocks of 32
# weights: 1.00 after rounding to 8 bits, 0.99 after 4 bits, and 0.93 after 3 bits. For models that
# were trained separately: 0.0 +- 0.1.
MIN_SKETCH_COSINE = 0.8
WARN_SKETCH_COSINE = 0.97

# Minimum number of tokens that a target shares with a draft model of another tokenizer. Tokenizers
# that fall back to bytes share at least the 95 printable ASCII characters.
MIN_COMMON_TOKENS = 95

# Maximum number of weights that an error about an incomplete checkpoint lists.
MAX_NAMED_WEIGHTS = 3

# Maximum number of parameters for which a half-precision draft model runs as a float32 copy on a
# CPU. A bfloat16 product has about 13 microseconds of overhead, and attention for one query takes
# several times as long as in float32. Measured with torch 2.13 on a draft model with 0.9 M
# parameters: a forward pass takes 1.7 ms in bfloat16 and 1.3 ms in float32. For a batch of 8, it
# takes 3.5 ms and 2.0 ms.
MAX_FLOAT32_DRAFT_PARAMETERS = 10_000_000

# Number of tokens after the longest attention window in a self-check's text.
CHECK_TEXT_TOKENS = 6

# Largest attention window, in tokens, that the self-check covers; longer windows take too long.
MAX_CHECKED_WINDOW = 512

# Largest difference between logits of a draft tree and plain logits, relative to the largest
# plain logit: for float32, and for the half-precision types. Rounding stays below these values on
# the architectures in the test suite.
FLOAT32_TOLERANCE = 1e-3
HALF_TOLERANCE = 0.1

# Number of tokens per text in the check that rows do not depend on one another.
ROW_CHECK_TOKENS = 8

# Row counts of the inputs in that check. The check calls the first foreign module of each kind with
# every row count, and other modules of this kind only with the last row count.
ROW_CHECK_COUNTS = (2, 7, 64, 300, 17)

# Size of the values in a loud row, relative to the largest value of the other rows. With one scale
# for all rows, even FP8 (e4m3, whose largest value is 230,000 times its smallest) then rounds the
# other rows to 0.
LOUD_ROW = 1e6

# Largest root mean square difference of a module's outputs between row counts, relative to the
# outputs. Kernels that round to bfloat16 at different times differ by less than 0.003; activations
# rounded to 8 bits differ from unrounded ones by at least 0.006.
ROW_COUNT_TOLERANCE = 0.005

# Logit of a token outside a reduced vocabulary, as a fraction of the dtype's lowest number. Its
# exponential is 0, yet a mask over all other tokens still leaves a valid distribution.
OUT_OF_REACH = 0.25

# Maximum size of a GGUF file's header, in bytes. A larger header means that the file is damaged.
MAX_HEADER_BYTES = 1 << 26

# A product with a packed weight requires multiples of this many outputs and inputs.
OUTPUT_MULTIPLE, INPUT_MULTIPLE = 8, 32

# Draft tree of the self-check at load: the parent of each node, and the accepted nodes. The path
# is a side branch, so rejected nodes come before and between the accepted ones.
CHECKED_TREE, CHECKED_PATH = (-1, 0, -1, 2, 2), (2, 4)

# Draft chain of the self-check for a model that verifies only chains, in the same form.
CHECKED_CHAIN, CHECKED_CHAIN_PATH = (-1, 0, 1, 2), (0, 1)

# Number of values that `block_encoding` encodes at a time. Its temporary tensors, 256 KiB each,
# then fit into the L2 cache.
VALUES_PER_CHUNK = 1 << 16

# Candidates for the number of levels of a Q4_K sub-block, minus 15.
LEVEL_SHIFTS = (-1.0, -0.75, -0.5, -0.25, 0.0, 0.25, 0.5, 0.75, 1.0)

# Packed weights start at multiples of this many bytes in a file, the size of a cache line.
WEIGHT_ALIGNMENT = 64

# Maximum time, in seconds, for one request that checks whether the model hub is reachable.
MAX_HUB_SECONDS = 10.0
