"""What speculative decoding costs (Huang et al. 2024, "SpecDec++", section 2), and what of several rules is worth choosing."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass

import numpy as np

from paceline.acceptance_card import latency


@dataclass(frozen=True, slots=True)
class Work:
    """One answer: forwards of either model, prefills included, and the time it took."""

    draft_forwards: int
    target_forwards: int
    seconds: float


@dataclass(frozen=True, slots=True)
class ForwardTimes:
    """Seconds per forward, fitted to `answers` answers; None for a model that did not run.

    Attributes:
        r_squared: share of the times' variance that the fit explains; None where all answers took equally many forwards.
    """

    draft: float | None
    target: float | None
    r_squared: float | None
    answers: int


@dataclass(frozen=True, slots=True)
class Point:
    """A rule for the length of drafts: what it discards, and how often the target must run, both per new token."""

    method: str
    discard_rate: float
    verification_rate: float


def fit_times(works: Seq[Work]) -> ForwardTimes | None:
    """The least-squares fit of equation 2.1, T = t_draft N_draft + t_target N_target; None where answers do not determine it."""
    columns = np.array([[work.draft_forwards, work.target_forwards] for work in works], dtype=float).reshape(-1, 2)
    seconds = np.array([work.seconds for work in works])
    used = [place for place in range(2) if columns[:, place].any()]
    if not used or np.linalg.matrix_rank(columns[:, used]) < len(used):
        return None
    found = np.linalg.lstsq(columns[:, used], seconds, rcond=None)[0]
    times: list[float | None] = [None, None]
    for place, time in zip(used, found.tolist(), strict=True):
        times[place] = time
    spread = float(((seconds - seconds.mean()) ** 2).sum())
    left = float(((seconds - columns[:, used] @ found) ** 2).sum())
    alike = spread == 0 or (columns == columns[0]).all()
    return ForwardTimes(times[0], times[1], None if alike else 1 - left / spread, len(works))


def cheapest(points: Iterable[Point], draft: float, target: float) -> Point | None:
    """The point of least latency; None if there are no points."""
    return min(points, key=lambda point: latency(draft, target, point), default=None)


def pareto_front(points: Iterable[Point]) -> list[Point]:
    """The points that no other one beats in one rate without losing in the other, by ascending discard rate (figure 4)."""
    front: list[Point] = []
    for point in sorted(points, key=lambda one: (one.discard_rate, one.verification_rate)):
        if not front or point.verification_rate < front[-1].verification_rate:
            front.append(point)
    return front


def verification_at(front: Seq[Point], discard_rate: float) -> float | None:
    """The verification rate of a front at a discard rate, on straight lines between its points; None outside them.

    Whoever uses either of two rules with a fixed chance gets the points between them.
    """
    return _between([(one.discard_rate, one.verification_rate) for one in front], discard_rate)


def discard_at(front: Seq[Point], verification_rate: float) -> float | None:
    """The discard rate of a front at a verification rate, likewise."""
    return _between([(one.verification_rate, one.discard_rate) for one in reversed(front)], verification_rate)


def _between(pairs: Seq[tuple[float, float]], place: float) -> float | None:
    if not pairs or not pairs[0][0] <= place <= pairs[-1][0]:
        return None
    places, values = np.array(pairs).T
    return float(np.interp(place, places, values))
