"""Define the benchmark settings that have no command-line option."""

from __future__ import annotations

WARMUP_TOKENS = 16  # Number of tokens in the untimed answers.
SPARE_NODES = 64  # Cache positions for draft nodes, allocated before the timed calls.
MIN_PROMPT_TOKENS = 8  # Minimum number of context tokens left for a prompt.
PROGRESS_SECONDS = 10.0  # Minimum time between two lines of progress without a terminal.
ROUNDING = 16  # An enlarged model's feed-forward size is a multiple of this.

# transformers' continuous batching.
PAGE_POSITIONS = 256  # Cache positions per block in its paged cache.
MAX_BATCH_TOKENS = 512  # Maximum number of tokens in a forward pass.

# Tables and plots.
WIDE_COLUMNS = 124  # Characters; narrower consoles show fewer columns.
MAX_DIVERGENCES = 5  # Maximum number of divergences in a table.
TITLE_COLUMNS = 118  # Characters of a title line.
WIDTH, ROW, FRAME = 10.0, 0.46, 2.3  # Inches.

# The verdict on a run. On an idle machine, the speed-up in elapsed time and the one in CPU time
# differ by 1 or 2 %.
DISTURBED_RATIO = 1.10  # Quotient of the two above which the times were disturbed.
OPPOSITE_RATIO = 1.03  # The same, if only one of the two is above 1.
STEADY_REPEATS = 3  # Passes over all prompts that even out short disturbances.
