"""Define settings of the rules, the heads and the run for the SpecDec++ paper.

The paper is Huang, Guo, Wang 2024.
"""

from __future__ import annotations

# Rules of figure 4.
LENGTHS = (2, 3, 4, 5, 6, 8, 10, 12, 14)  # K. The paper has the even ones.
THRESHOLDS = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)  # h of the first head.
PAPER_THRESHOLDS = (0.1, 0.3, 0.5, 0.7, 0.9)  # h of further heads, and of timed rules.
ADVISED_THRESHOLD = 0.7  # h that the paper recommends.
MAX_DRAFT_TOKENS = 20  # Maximum draft tokens of the heads and of the rules below.
STOP_BOUNDS = {
    "product": (0.1, 0.3, 0.5, 0.7, 0.9),
    "confidence": (0.2, 0.4, 0.6, 0.8, 0.9),
    "entropy": (0.3, 0.4, 0.5, 0.6, 0.8),
}

# Grid of heads (appendix C.3). The paper's choice comes first, in case the time ends early.
REJECT_WEIGHTS = (6.0, 1.0, 3.0, 12.0)  # w_rej.
DEPTHS = (3, 1, 0, 2, 4)  # D.
GRID = len(REJECT_WEIGHTS) * len(DEPTHS)
EPOCHS = 3  # As in the paper's public code.

# Shares of the time for four stages, each with everything before it: counts, timed runs, training
# of the grid, counts of the grid. GRID: with recordings. SCALED: with a cost scale.
SHARES = (0.7, 0.95, 1.0, 1.0)
GRID_SHARES = (0.3, 0.45, 0.65, 0.98)
SCALED_SHARES = (0.3, 0.95, 1.0, 1.0)
SCALED_GRID_SHARES = (0.2, 0.6, 0.75, 0.98)
ALONE_PROMPTS = 6  # Prompts that time the draft model alone.
