"""Numbers of the model room, each with its unit and the data it was chosen on."""

from __future__ import annotations

# Tokens: context length of a model whose configuration names none.
UNBOUNDED_CONTEXT = 1 << 30

# Weights per tensor in a model fingerprint. Another number changes every fingerprint on disk.
FINGERPRINT_SAMPLES = 64

# Rows and columns of the embedding in a sketch. Another number changes every sketch on disk.
SKETCH_SIZE = 64

# Cosines between the embedding sketches of two models. Below the first, they are different models;
# from the second on, no warning is needed. Measured: rounding to 8, 4 and 3 bits in blocks of 32
# leaves 1.00, 0.99 and 0.93; models trained separately have 0.0 +- 0.1.
MIN_SKETCH_COSINE = 0.8
WARN_SKETCH_COSINE = 0.97

# Weights that an error about an incomplete checkpoint names.
MAX_NAMED_WEIGHTS = 3

# Parameters up to which a half-precision draft model runs as a float32 copy on a CPU. A bfloat16
# product costs about 13 microseconds before it begins, and attention of one query several times
# its float32 time. Measured with torch 2.13 on a draft of 0.9 M parameters: 1.7 against 1.3 ms per
# forward pass, and 3.5 against 2.0 ms for a batch of 8.
MAX_FLOAT32_DRAFT_PARAMETERS = 10_000_000

# Tokens that the text of a self-check has after the longest attention window.
CHECK_TEXT_TOKENS = 6

# Tokens: the self-check covers attention windows up to this size; longer ones take too long.
MAX_CHECKED_WINDOW = 512

# Largest difference between logits of a draft tree and plain logits, relative to the largest
# plain logit: for float32, and for the half-precision types. Rounding stays below on the
# architectures of the test suite.
FLOAT32_TOLERANCE = 1e-3
HALF_TOLERANCE = 0.1

# Logit of a token outside of a reduced vocabulary, as a part of the dtype's lowest number. Its
# exponential is 0, and yet a mask over all other tokens leaves a distribution.
OUT_OF_REACH = 0.25
