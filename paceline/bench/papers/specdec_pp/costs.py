"""What speculative decoding costs (Huang et al. 2024, "SpecDec++", section 2), and what of
several rules is worth choosing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from paceline.bench.papers.specdec_pp.result import ForwardTimes, RulePoint, SettingTimes
from paceline.bench.result import BenchResult
from paceline.drafters.specdec_pp.card import latency


@dataclass(frozen=True, slots=True)
class AnswerCost:
    """One answer: forwards of either model, prefills included, and the time it took."""

    draft_forwards: int
    target_forwards: int
    seconds: float


def fit_times(works: Sequence[AnswerCost]) -> ForwardTimes | None:
    """Return the least-squares fit of equation 2.1, T = t_draft N_draft + t_target N_target;
    None if undetermined.
    """
    columns = np.array(
        [[work.draft_forwards, work.target_forwards] for work in works], dtype=float
    ).reshape(-1, 2)
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


def setting_times(
    setting: str, result: BenchResult, methods: Iterable[str], drafting: bool = False
) -> SettingTimes:
    """Fit the times of the answers of those methods (section 4.2), by the clock and in processor
    time.

    Args:
        drafting: they are the draft model's own, by itself.
    """
    wanted, fits = set(methods), []
    calls = [call for call in result.calls if call.method in wanted and len(call.rows) == 1]
    for field in ("seconds", "cpu_seconds"):
        counts = [(call.rows[0].counts, getattr(call, field)) for call in calls]
        fit = fit_times(
            [
                AnswerCost(one.draft_forwards, one.target_forwards, seconds)
                for one, seconds in counts
                if one is not None
            ]
        )
        fits.append(
            fit and dataclasses.replace(fit, draft=fit.target, target=None) if drafting else fit
        )
    return SettingTimes(setting, *fits)


def cheapest(points: Iterable[RulePoint], draft: float, target: float) -> RulePoint | None:
    """Return the point of least latency; None if there are no points."""
    return min(points, key=lambda point: latency(draft, target, point), default=None)


def pareto_front(points: Iterable[RulePoint]) -> list[RulePoint]:
    """Return the points that no other one beats in one rate without losing in the other, by
    ascending discard rate (figure 4).
    """
    front: list[RulePoint] = []
    for point in sorted(points, key=lambda one: (one.discard_rate, one.verification_rate)):
        if not front or point.verification_rate < front[-1].verification_rate:
            front.append(point)
    return front


def verification_at(front: Sequence[RulePoint], discard_rate: float) -> float | None:
    """Return the verification rate of a front at a discard rate, on straight lines between its
    points; None outside them.

    Whoever uses either of two rules with a fixed chance gets the points between them.
    """
    return _between([(one.discard_rate, one.verification_rate) for one in front], discard_rate)


def discard_at(front: Sequence[RulePoint], verification_rate: float) -> float | None:
    """Return the discard rate of a front at a verification rate, likewise."""
    return _between(
        [(one.verification_rate, one.discard_rate) for one in reversed(front)], verification_rate
    )


def _between(pairs: Sequence[tuple[float, float]], place: float) -> float | None:
    if not pairs or not pairs[0][0] <= place <= pairs[-1][0]:
        return None
    places, values = np.array(pairs).T
    return float(np.interp(place, places, values))
