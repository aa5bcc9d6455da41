"""Define constants for the llama.cpp engine."""

from __future__ import annotations

# Maximum size, in bytes, of a parameter structure that a library returns. The largest known
# structure has 168 bytes.
MAX_STRUCTURE_BYTES = 512

# ggml's id of the float16 type, in which keys and values are stored.
F16 = 1

# Maximum number of sequence ids in one context (`LLAMA_MAX_SEQ` in every build since 2025).
MAX_SEQUENCES = 256

# Maximum default number of threads in a library. A larger number means that the assumed layout is
# wrong.
MAX_THREADS = 4096

# Log level of llama.cpp's errors. Messages about progress have lower levels.
ERROR_LEVEL = 4

# Maximum number of rows in one call of llama.cpp. With the default prefill chunk, one request with
# a draft tree has fewer rows; larger batches take several calls.
BATCH_ROWS = 2048

# Maximum number of rows that llama.cpp computes at once, with and without batch invariance. For 64
# rows or more, llama.cpp adds up attention in a different order.
EXACT_ROWS_PER_PASS = 63
ROWS_PER_PASS = 512

# llama.cpp rounds the number of cells in a cache up to a multiple of this number.
CELL_STEP = 256

# Number of cells for discarded tokens, as a fraction of the cells for tokens in use. Once these
# cells are full, the tokens in use are copied to the front of the cache.
DISCARDED_SHARE = 0.5

# Maximum number of draft tokens by which a recurrent model can be rolled back. Each of these tokens
# requires memory for one copy of the states per sequence.
MAX_ROLLBACK = 8

# Number of tokens in the text that checks a model at load, and the row counts whose results must
# agree.
CHECK_TOKENS = 24
CHECK_ROWS = (2, 3, 5, 8)

# Difference between successive token ids in the text of a check, so that the tokens differ.
CHECK_STRIDE = 7919
