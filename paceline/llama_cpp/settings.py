"""Define constants for the llama.cpp engine."""

from __future__ import annotations

# Longest structure of parameters that a library may return, in bytes; the largest known has 168.
MAX_STRUCTURE_BYTES = 512

# ggml's number of the 16-bit float type, in which keys and values are stored.
F16 = 1

# Most sequence ids in one context (`LLAMA_MAX_SEQ` in every build since 2025).
MAX_SEQUENCES = 256

# Most threads that a library may have by default; other numbers show a wrong layout.
MAX_THREADS = 4096

# Level of llama.cpp's errors in its log. It logs its progress at lower levels.
ERROR_LEVEL = 4

# Maximum number of rows in one call of llama.cpp. One request in prefill with a draft tree has
# fewer; larger batches take several calls.
BATCH_ROWS = 2048

# Rows that llama.cpp computes at once. It adds up attention in another order for 64 rows or more.
EXACT_ROWS_PER_PASS = 63
ROWS_PER_PASS = 512

# The cache has a multiple of this number of cells, as llama.cpp rounds up to it.
CELL_STEP = 256

# Cells for discarded tokens, as a share of the cells for tokens in use. If they are full, the
# tokens in use are copied to the front of the cache.
DISCARDED_SHARE = 0.5

# Maximum number of draft tokens by which a recurrent model can be rolled back. Each takes memory
# for one copy of the states per sequence.
MAX_ROLLBACK = 8

# Tokens of the text with which a model is checked at load, and the row counts that must agree.
CHECK_TOKENS = 24
CHECK_ROWS = (2, 3, 5, 8)

# Factor by which a token id grows along the text of a check, so that the tokens differ.
CHECK_STRIDE = 7919
