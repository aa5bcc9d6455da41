"""Settings of the bench that have no option."""

from __future__ import annotations

WARMUP_TOKENS = 16  # Tokens of the untimed answers.
SPARE_NODES = 64  # Cache positions for draft nodes, allocated before the timed calls.
MIN_PROMPT_TOKENS = 8  # Context tokens that must be left for a prompt.
ROUNDING = 16  # The feed-forward size of an enlarged model is a multiple of it.
WARMUP_ROUNDS = 1  # Untimed rounds of the cost of batch invariance.

# transformers' continuous batching.
PAGE_POSITIONS = 256  # Cache positions per block of its paged cache.
MAX_BATCH_TOKENS = 512  # Maximum tokens of a forward pass.

# Tables and pictures.
WIDE_COLUMNS = 124  # Characters; narrower consoles show fewer columns.
MAX_DIVERGENCES = 5  # Divergences that a table lists.
TITLE_COLUMNS = 118  # Characters of a title line.
WIDTH, ROW, FRAME = 10.0, 0.46, 2.3  # Inches.
