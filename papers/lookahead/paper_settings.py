"""Define settings and published numbers from the lookahead paper (Fu et al. 2024)."""

from __future__ import annotations

from papers.lookahead.scaling_law import ScalingLaw
from papers.part import PLAIN, TableLine

PAPER_LAW = ScalingLaw(alpha=0.425, f=3.106)  # In the caption of the figure.


def spec_of(
    ngram: int, window: int, guesses: int, prompt_pool: bool = False, published: bool = False
) -> str:
    """Return the drafter spec for an n-gram size N, window width W and guess count G.

    Args:
        ngram, window, guesses: N, W and G.
        prompt_pool: Whether to add the prompt's n-grams to the pool.
        published: Whether the drafter works exactly like the paper's public code.
    """
    pool = str(prompt_pool).lower()
    spec = f"lookahead:window={window},ngram={ngram},guesses={guesses},prompt_pool={pool}"
    return f"{spec},reference_mode=true" if published else spec


# Speed-up and S of LLaMA-2-7B-chat on MT-Bench, one A100, FlashAttention.
TABLE_3 = (
    TableLine("1 autoregressive", PLAIN, (1.00, 1.00)),
    TableLine("2 prompt lookup, 10 tokens", "prompt_lookup:max_draft_tokens=10", (1.44, 1.55)),
    TableLine("3 (10, 1, 3) + prompt", spec_of(10, 1, 3, True), (1.36, 1.45)),
    TableLine("4 (5, 1, 10) + prompt", spec_of(5, 1, 10, True), (1.36, 1.51)),
    TableLine("5 (5, 1, 30)", spec_of(5, 1, 30), (1.04, 1.12)),
    TableLine("6 (5, 1, 30) + prompt", spec_of(5, 1, 30, True), (1.46, 1.59)),
    TableLine("7 (5, 30, 1)", spec_of(5, 30, 1), (1.61, 1.79)),
    TableLine("8 (5, 15, 15)", spec_of(5, 15, 15), (1.78, 1.96)),
    TableLine("9 (5, 15, 15) + prompt", spec_of(5, 15, 15, True), (1.88, 2.05)),
)
DRAFT = "draft_model:max_draft_tokens=4"
# Speed-ups of Vicuna-7B on MT-Bench and on HumanEval, one A100.
TABLE_6 = (
    TableLine("autoregressive", PLAIN, (1.0, 1.0)),
    TableLine("lookahead (5, 15, 15)", spec_of(5, 15, 15), (1.7, 2.1)),
    TableLine("lookahead, default", "lookahead"),
    TableLine("Medusa", None, (2.3, 2.5)),
    TableLine("draft model, 4 tokens", DRAFT, (0.7, 0.8)),
    TableLine("Jacobi", "jacobi", (0.4, 0.7)),
    TableLine("Gauss-Seidel-Jacobi, block 5", "jacobi:block=5", (1.1, 1.1)),
    TableLine("Gauss-Seidel-Jacobi, block 16", "jacobi:block=16", (1.1, 1.1)),
)

# Settings of the picture.
POINT_SIZES = (11, 8.5, 7.5, 5.5)  # Different sizes keep points visible that lie on each other.
PAGE = (11.0, 9.6)  # Inches.
TITLE_COLUMNS = 150  # Characters of a title line.
CURVE_SEGMENTS = 80  # Segments of a curve.

# Settings of the run.
TABLES_SHARE = 0.35  # Share of the time for the tables; the figure gets the rest.
MIN_NODES = 256  # Minimum of `max_nodes`, the default of `LLM`.
