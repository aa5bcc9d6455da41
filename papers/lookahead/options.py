"""Define the configuration for the lookahead paper."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from paceline.util.config import require_range
from papers.config import PaperConfig

# Figure 4: N, and W = G.
NGRAMS = (3, 5, 7, 9)
WINDOWS = (1, 2, 4, 8, 15, 30)

_MIN_NGRAM, _MIN_WINDOW = 2, 1  # smallest values that the drafter accepts


@dataclass(frozen=True, slots=True)
class LookaheadConfig(PaperConfig):
    """Configuration for the lookahead paper.

    Attributes:
        ngrams: n-gram sizes N to measure for figure 4; each at least 2. Fewer sizes take less time.
        windows: Window widths W to measure for figure 4; each at least 1. Wide windows take the
            most time.
    """

    paper: ClassVar[str] = "lookahead"

    ngrams: tuple[int, ...] = NGRAMS
    windows: tuple[int, ...] = WINDOWS

    def __post_init__(self) -> None:
        PaperConfig.__post_init__(self)
        for ngram in self.ngrams:
            require_range("lookahead paper", "ngrams", ngram, _MIN_NGRAM)
        for window in self.windows:
            require_range("lookahead paper", "windows", window, _MIN_WINDOW)

    @property
    def settings(self) -> list[tuple[int, int]]:
        """Return the pair (N, W) for each point in figure 4."""
        return [(ngram, window) for ngram in self.ngrams for window in self.windows]
