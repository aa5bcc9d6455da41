"""Define settings and published numbers from Ouroboros (Zhao et al. 2024)."""

from __future__ import annotations

from papers.part import PLAIN, TableLine

MATCH_GAMMA = 20  # Draft tokens of table 1 and figure 3.
SUFFIXES = (0, 1, 3, 5, 10, 20)  # K of figure 5. The paper's pool holds 20 phrases per token.
COLD, WARM = "ouroboros", "ouroboros:shared_pool=true"


def spec_of(
    suffixes: int = 3, inspiration: str = "paper", refinement: bool = True, warm: bool = False
) -> str:
    """Return the drafter of table 3 and figure 5 (appendix B): gamma 12, W 20, N 8.

    Its draft tree contains only the draft and the suffixes of the draft.
    """
    flags = f"refinement={str(refinement).lower()},shared_pool={str(warm).lower()}"
    tree = f"suffixes={suffixes},max_branches=0,inspiration={inspiration}"
    return f"ouroboros:gamma=12,window=20,ngram=8,{tree},{flags}"


def figure_5_spec(suffixes: int, published: bool) -> str:
    """Return the drafter for a point in figure 5; with K = 0, drafts are not refined.

    Args:
        suffixes: Number of suffixes, K.
        published: Whether to use the paper's settings instead of the defaults.
    """
    if published:
        return spec_of(suffixes, refinement=suffixes > 0)
    return COLD if suffixes == 3 else f"{COLD}:suffixes={suffixes}"


TABLE_2_COLUMNS = (
    "GSM8K Yi",
    "GSM8K Llama",
    "CNN/DM Yi",
    "CNN/DM Llama",
    "WMT16 Yi",
    "WMT16 Llama",
)
_LOOKAHEAD = "lookahead:window=15,ngram=6,guesses=15,prompt_pool=false"
# Speed-ups of Yi 34b with 6b, and of Llama-2 70b with 7b.
TABLE_2 = (
    TableLine("greedy", PLAIN, (1.00,) * 6),
    TableLine(
        "speculative, 5 tokens",
        "draft_model:max_draft_tokens=5",
        (1.11, 1.88, 1.22, 1.57, 1.18, 1.55),
    ),
    TableLine("speculative, default", "draft_model"),
    TableLine("lookahead (6, 15, 15)", _LOOKAHEAD, (1.64, 1.54, 1.28, 1.17, 1.22, 1.54)),
    TableLine("lookahead, default", "lookahead"),
    TableLine("Ouroboros, paper's setting", spec_of(), (1.72, 2.48, 1.45, 1.80, 1.34, 2.01)),
    TableLine("Ouroboros, paper's, warm", spec_of(warm=True), (1.84, 2.68, 1.55, 1.81, 1.35, 2.02)),
    TableLine("Ouroboros, default", COLD),
    TableLine("Ouroboros, default, warm", WARM),
)

NOTHING = spec_of(0, "off", refinement=False)


def _ablated(label: str, method: str, rate: float) -> TableLine:
    return TableLine(label, method, (rate, rate / 49.90))


PAPER_SPEED = ("paper's tokens/s", "paper's speed-up")
# HumanEval with Yi 34b and 6b, without a warm start.
TABLE_3 = (
    TableLine("draft model alone, 12 tokens", "draft_model:max_draft_tokens=12"),
    _ablated("drafted in phrases", NOTHING, 49.90),
    _ablated("+ inspiration", spec_of(0, refinement=False), 48.90),
    _ablated("+ suffixes", spec_of(3, "off", refinement=False), 55.92),
    _ablated("+ inspiration, suffixes", spec_of(3, refinement=False), 56.97),
    _ablated("+ suffixes, refinement", spec_of(3, "off"), 57.23),
    _ablated("+ all three", spec_of(), 58.18),
    TableLine("all, the code's inspiration", spec_of(inspiration="code")),
    TableLine("all, every node inspires", spec_of(inspiration="every")),
    TableLine("default", COLD),
    TableLine("default, no inspiration", f"{COLD}:inspiration=off"),
    TableLine("default, no refinement", f"{COLD}:refinement=false"),
    TableLine("default, no suffixes", figure_5_spec(0, published=False)),
    TableLine("default, no additional choices", f"{COLD}:max_branches=0"),
)
# Consecutive number (None is random), warm, published tokens/s. Gamma 6, W 18, N 6, K 3.
TABLE_4: tuple[tuple[int | None, bool, float], ...] = (
    (None, False, 32.68), (20, False, 32.53), (None, True, 35.39), (20, True, 36.00), (10, True,
    35.32), (4, True, 34.83),
    (1, True, 35.36),
)  # fmt: skip
# LCP and #Match-1 of Yi 34b with 6b.
TABLE_1_PAPER = {"MBPP": (12.7, 18.9), "CNN/DM": (8.4, 17.8), "WMT-16": (5.3, 17.0)}

_FIGURE_5 = [
    figure_5_spec(suffixes, published) for published in (True, False) for suffixes in SUFFIXES
]
METHODS = tuple(
    dict.fromkeys(
        [*(line.method for line in (*TABLE_2, *TABLE_3) if line.method is not None), *_FIGURE_5]
    )
)

# Settings of the picture.
PAGE = (12.0, 14.0)  # Inches.
TITLE_COLUMNS = 165  # Characters of a title line.

# Shares of the time, each with everything before it. Table 4 gets the rest.
TABLES_SHARE = 0.55
MATCHES_SHARE = 0.65
