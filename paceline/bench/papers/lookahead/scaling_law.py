"""The scaling law of Lookahead Decoding (Fu et al. 2024, section 4), and its two parameters fitted
to measurements.

E = (g + 1) - sum over i = 1..g of (1 - alpha^i)^b          equation 5, with g = N - 1 and b = W = G
S = (f - 1 + E) / f                                         equation 7

alpha: the chance that a guessed token is accepted; f: one step in f has a good guess, the others
yield one token; S: tokens per decoding step (equation 6).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from paceline.util.config import require_range

_GRID = 200  # places between which alpha is searched at first
_GOLDEN = (math.sqrt(5) - 1) / 2
_REFINEMENTS = 40  # each narrows the search by the golden section: a factor of 2e8 in all


@dataclass(frozen=True, slots=True)
class CompressionPoint:
    """One measurement: n-grams of `ngram` tokens, `window` columns and as many guesses,
    `compression` tokens per forward.
    """

    ngram: int
    window: int
    compression: float


@dataclass(frozen=True, slots=True)
class ScalingLaw:
    """Equations 5 to 7 with their parameters.

    Attributes:
        alpha: acceptance of a guessed token, 0 to 1.
        f: steps per step that has a good guess, at least 1.
    """

    alpha: float
    f: float

    def __post_init__(self) -> None:
        require_range("scaling law", "alpha", self.alpha, 0, 1)
        require_range("scaling law", "f", self.f, 1)

    def compression(self, ngram: int, window: float) -> float:
        """S at W = G = `window`, equation 7."""
        return (self.f - 1 + expected_tokens(self.alpha, ngram - 1, window)) / self.f

    def residual(self, points: Sequence[CompressionPoint]) -> float:
        """Root of the mean squared distance between `points` and the law, in tokens per step."""
        squares = [
            (self.compression(point.ngram, point.window) - point.compression) ** 2
            for point in points
        ]
        return math.sqrt(sum(squares) / len(squares))


def expected_tokens(alpha: float, length: int, sequences: float) -> float:
    """E(#tokens) of a step that verifies `sequences` guesses of `length` tokens each, equation 5.

    With one guess this is equation 4, (1 - alpha^(length + 1)) / (1 - alpha).
    """
    return length + 1 - sum(float((1 - alpha**i) ** sequences) for i in range(1, length + 1))


def fit(points: Sequence[CompressionPoint]) -> ScalingLaw | None:
    """The law of the least sum of squared distances to `points`; None where they cannot tell alpha
    and f.

    S - 1 = (E - 1) / f is linear in 1 / f, so the best f of any alpha is known (at least 1), and
    alpha alone is searched: on a grid, then by golden sections around the best place.
    """
    if len({(point.ngram, point.window) for point in points}) < 2 or all(
        point.compression <= 1 for point in points
    ):
        return None

    def error(alpha: float) -> float:
        law = _best_of(alpha, points)
        return math.inf if law is None else law.residual(points)

    best = min(range(1, _GRID), key=lambda place: error(place / _GRID))
    low, high = (best - 1) / _GRID, (best + 1) / _GRID
    for _ in range(_REFINEMENTS):
        left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
        low, high = (low, right) if error(left) <= error(right) else (left, high)
    return _best_of((low + high) / 2, points)


def _best_of(alpha: float, points: Sequence[CompressionPoint]) -> ScalingLaw | None:
    """The law of this alpha whose 1 / f has the least squares; None if that is not positive."""
    gains = [
        (expected_tokens(alpha, point.ngram - 1, point.window) - 1, point.compression - 1)
        for point in points
    ]
    above = sum(gain * measured for gain, measured in gains)
    below = sum(gain * gain for gain, _ in gains)
    return ScalingLaw(alpha, max(1.0, below / above)) if above > 0 and below > 0 else None
