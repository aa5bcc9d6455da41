"""Fit the scaling law of Lookahead Decoding to measurements.

The law is from Fu et al. 2024, section 4. N is the n-gram size, W the window width and G the number
of guesses. With g = N - 1 and b = W = G:

- `E = (g + 1) - sum over i = 1..g of (1 - alpha^i)^b` (equation 5)
- `S = (f - 1 + E) / f` (equation 7)

alpha is the probability that a draft token is accepted. One in f steps has a good draft; every
other step yields one token. S is the number of tokens per decoding step (equation 6).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from paceline.util.config import require_range
from papers.lookahead.fit_settings import GRID, REFINEMENTS

_GOLDEN = (math.sqrt(5) - 1) / 2  # Golden section.


@dataclass(frozen=True, slots=True)
class CompressionPoint:
    """The measured tokens per forward pass for one setting.

    Attributes:
        ngram: Number of tokens in an n-gram, N.
        window: Number of columns in the window, W, which equals the number of guesses, G.
        compression: Tokens per forward pass, S.
    """

    ngram: int
    window: int
    compression: float


@dataclass(frozen=True, slots=True)
class ScalingLaw:
    """Equations 5 to 7 with their parameters.

    Attributes:
        alpha: Acceptance rate of a draft token, from 0 to 1.
        f: Mean number of steps per step with a good draft; at least 1.
    """

    alpha: float
    f: float

    def __post_init__(self) -> None:
        require_range("scaling law", "alpha", self.alpha, 0, 1)
        require_range("scaling law", "f", self.f, 1)

    def compression(self, ngram: int, window: float) -> float:
        """Return the tokens per step, S, at W = G = `window` (equation 7)."""
        return (self.f - 1 + expected_tokens(self.alpha, ngram - 1, window)) / self.f

    def residual(self, points: Sequence[CompressionPoint]) -> float:
        """Return the law's root mean squared error at `points`, in tokens per step."""
        squares = [
            (self.compression(point.ngram, point.window) - point.compression) ** 2
            for point in points
        ]
        return math.sqrt(sum(squares) / len(squares))


def expected_tokens(alpha: float, length: int, sequences: float) -> float:
    """Return the expected tokens per step with drafts of `length` tokens (equation 5).

    With `sequences` = 1, this is equation 4: (1 - alpha^(length + 1)) / (1 - alpha).
    """
    return length + 1 - sum(float((1 - alpha**i) ** sequences) for i in range(1, length + 1))


def fit(points: Sequence[CompressionPoint]) -> ScalingLaw | None:
    """Fit the law to `points` by least squares; None if they do not determine it.

    S - 1 = (E - 1) / f is linear in 1 / f. For a given alpha, the best f (at least 1) can therefore
    be computed directly. The best alpha is found by a search, first on a grid and then by golden
    section.
    """
    if len({(point.ngram, point.window) for point in points}) < 2 or all(
        point.compression <= 1 for point in points
    ):
        return None

    def error(alpha: float) -> float:
        law = _best_of(alpha, points)
        return math.inf if law is None else law.residual(points)

    best = min(range(1, GRID), key=lambda index: error(index / GRID))
    low, high = (best - 1) / GRID, (best + 1) / GRID
    for _ in range(REFINEMENTS):
        left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
        low, high = (low, right) if error(left) <= error(right) else (left, high)
    return _best_of((low + high) / 2, points)


def _best_of(alpha: float, points: Sequence[CompressionPoint]) -> ScalingLaw | None:
    """Return the law with the best 1 / f for this alpha; None if 1 / f <= 0."""
    gains = [
        (expected_tokens(alpha, point.ngram - 1, point.window) - 1, point.compression - 1)
        for point in points
    ]
    above = sum(gain * measured for gain, measured in gains)
    below = sum(gain * gain for gain, _ in gains)
    return ScalingLaw(alpha, max(1.0, below / above)) if above > 0 and below > 0 else None
