"""Define settings and numbers that the SSSD paper published.

The paper is Marzollo et al. 2024. s_q is the number of query tokens per request: the newest token
and the nodes of the tree.
"""

from __future__ import annotations

SIZES = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64)  # s_q of the figures.
BATCHES = (1, 8)
SPLIT_BATCH = 8  # Batch of figure 3.
TIMED = (4, 8, 16, 32)  # s_q of timed decoding.
# Order of the replays, in case the time ends early.
REPLAY_ORDER = (
    16,
    4,
    64,
    8,
    32,
    2,
    48,
    24,
    12,
)

# Published numbers.
PAPER_BUDGET, PAPER_BUDGET_SIZE = 435, 54  # b s_q, and s_q at batch 8, in the text.
PAPER_CONTEXT = 512  # Cached tokens for the roofline of the paper's device.
# change of acceptance: "1-2 %", "around 20 %"
PAPER_TEMPERATURES = {0.5: -0.015, 1.0: -0.015, 2.0: -0.2}

# Section 4.2.
TEMPERATURES = (0.5, 1.0, 2.0)
TOP_K, TOP_P = 50, 0.7
SAMPLED_SIZES = (16, 32)  # s_q.
SAMPLE_ROUNDS = 4  # Maximum samples of each answer.
SAMPLING_SHARE = 0.7  # Share of the time for sampling; the replays get the rest.
ANSWER_BATCH = 8  # Prompts answered together.

# Replays of figure 4.
QUERY_TOKENS = 4  # Newest tokens that the paper's fusion looks up.
WARM_ANSWERS = 10_000  # Answers that `pia` learns before, as in the paper.
WARM_TOKENS = 50_000  # Maximum tokens of these answers, as every size starts with a new drafter.
RETRIEVAL_SIZES = (16, 64)  # s_q whose retrieval times are shown.
STORE_TOKENS = 1_000_000  # Tokens of the datastore that figure 5 writes in both vocabularies.

# Forward times of figures 2 and 3.
COST_CONTEXTS = (128, 1024)  # Cached tokens.
COST_ROUNDS, SPLIT_ROUNDS = 15, 5
FORWARDS_SHARE = 0.7  # Share of the time for whole forwards; their parts get the rest.
EVALUATED = (1, 16)  # s_q at which table 1 is evaluated, at batch 8.
GEMM_SIZE = {"cuda": 8192, "cpu": 1024}  # Rows and columns of the product that measures the FLOP/s.
# Bytes of each array of the sum that measures bytes/s.
ADDED_BYTES = {"cuda": 1 << 30, "cpu": 1 << 28}
PEAK_RUNS = 7

# Shares of the time that is left at the beginning of each stage.
ONE_BY_ONE_SHARE = 0.15  # Decoding with one prompt at a time.
ANSWERS_SHARE = 0.1
REPLAYS_SHARE = 0.25
COSTS_SHARE = 0.3
SAMPLES_SHARE = 0.3
VOCABULARY_SHARE = 0.3
BATCHES_SHARE = 1.0

# The picture.
PAGE = (13.0, 21.0)  # Inches.
HEIGHTS = (1.0, 1.0, 1.0, 0.9, 0.9)  # Relative heights of its rows.
TITLE_COLUMNS = 165  # Characters of a title line.
SHOWN_SETS = 4  # Maximum sets of prompts with a panel.
MICROSECOND_TICKS = (20, 50, 100, 200, 500, 1000, 2000)
