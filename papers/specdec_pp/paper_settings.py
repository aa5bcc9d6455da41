"""Define numbers published in the SpecDec++ paper (Huang et al. 2024)."""

from __future__ import annotations

from papers.specdec_pp.picks import Choice, Pick
from papers.specdec_pp.result import (
    DRAFT_ALONE,
    IN_BOTH,
    IN_FIXED,
    IN_HEAD,
    TARGET_ALONE,
)
from papers.specdec_pp.rules import ORACLE

PLAINLY, FIXED_BEST, HEAD_BEST = "plain decoding", "best fixed K", "best threshold"
# N_target / N and tokens/s on Alpaca.
SECTION_2_1: dict[str, tuple[float | None, float]] = {
    PLAINLY: (1.0, 9.26),
    FIXED_BEST: (None, 17.58),
    ORACLE: (0.164, 27.06),
}
# Tokens/s. Version 1 of the paper has the labels of its two rows swapped.
TABLE_1 = (
    Pick("Alpaca", 9.26, Choice("-", 17.62), Choice("-", 18.88)),
    Pick("HumanEval", 9.26, Choice("-", 18.55), Choice("-", 20.61)),
    Pick("GSM8K", 9.26, Choice("-", 19.14), Choice("-", 20.95)),
)
# t_draft and t_target in seconds: section 4.2, means over the data sets.
TABLE_2: dict[str, tuple[float | None, float | None]] = {
    IN_FIXED: (None, None),
    IN_HEAD: (None, None),
    IN_BOTH: (0.0234, 0.112),
    TARGET_ALONE: (None, 0.108),
    DRAFT_ALONE: (0.0207, None),
}
