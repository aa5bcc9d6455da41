"""Fit the costs of speculative decoding, and compare rules by their cost.

The cost model is from Huang et al. 2024 ("SpecDec++"), section 2.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from paceline.bench.result import BenchResult
from paceline.drafters.specdec_pp.card import latency
from papers.specdec_pp.result import ForwardTimes, RulePoint, SettingTimes


@dataclass(frozen=True, slots=True)
class AnswerCost:
    """The cost of an answer: time and both models' forward passes, including prefill."""

    draft_forwards: int
    target_forwards: int
    seconds: float


def fit_times(works: Sequence[AnswerCost]) -> ForwardTimes | None:
    """Fit equation 2.1 by least squares; return None if it is underdetermined.

    The equation is T = t_draft N_draft + t_target N_target.
    """
    columns = np.array(
        [[work.draft_forwards, work.target_forwards] for work in works], dtype=float
    ).reshape(-1, 2)
    seconds = np.array([work.seconds for work in works])
    used = [column for column in range(2) if columns[:, column].any()]
    if not used or np.linalg.matrix_rank(columns[:, used]) < len(used):
        return None
    solution = np.linalg.lstsq(columns[:, used], seconds, rcond=None)[0]
    times: list[float | None] = [None, None]
    for column, time in zip(used, solution.tolist(), strict=True):
        times[column] = time
    spread = float(((seconds - seconds.mean()) ** 2).sum())
    residual = float(((seconds - columns[:, used] @ solution) ** 2).sum())
    alike = spread == 0 or (columns == columns[0]).all()
    return ForwardTimes(times[0], times[1], None if alike else 1 - residual / spread, len(works))


def setting_times(
    setting: str, result: BenchResult, methods: Iterable[str], drafting: bool = False
) -> SettingTimes:
    """Fit the duration of forward passes to the answers of some methods (section 4.2).

    The result contains both wall-clock and processor times.

    Args:
        setting: Name of the setting.
        result: Run with the answers.
        methods: Names of the methods whose answers are used.
        drafting: Whether the draft model ran alone as the target, so that the run's target forward
            passes are those of the draft model.
    """
    selected, fits = set(methods), []
    calls = [call for call in result.calls if call.method in selected and len(call.rows) == 1]
    for field in ("seconds", "cpu_seconds"):
        counts = [(call.rows[0].counts, getattr(call, field)) for call in calls]
        fit = fit_times(
            [
                AnswerCost(row_counts.draft_forwards, row_counts.target_forwards, seconds)
                for row_counts, seconds in counts
                if row_counts is not None
            ]
        )
        fits.append(
            fit and dataclasses.replace(fit, draft=fit.target, target=None) if drafting else fit
        )
    return SettingTimes(setting, *fits)


def cheapest(points: Iterable[RulePoint], draft: float, target: float) -> RulePoint | None:
    """Return the point with the lowest latency; None if there are no points."""
    return min(points, key=lambda point: latency(draft, target, point), default=None)


def pareto_front(points: Iterable[RulePoint]) -> list[RulePoint]:
    """Return the Pareto-optimal points in order of rising discard rate (figure 4)."""
    front: list[RulePoint] = []
    for point in sorted(points, key=lambda point: (point.discard_rate, point.verification_rate)):
        if not front or point.verification_rate < front[-1].verification_rate:
            front.append(point)
    return front


def verification_at(front: Sequence[RulePoint], discard_rate: float) -> float | None:
    """Return a front's verification rate at a discard rate; None outside the front.

    The front is interpolated linearly, because choosing between two rules at random gives any point
    on the line between them.
    """
    return _between(
        [(point.discard_rate, point.verification_rate) for point in front], discard_rate
    )


def discard_at(front: Sequence[RulePoint], verification_rate: float) -> float | None:
    """Return a front's discard rate at a verification rate; None outside the front."""
    return _between(
        [(point.verification_rate, point.discard_rate) for point in reversed(front)],
        verification_rate,
    )


def _between(pairs: Sequence[tuple[float, float]], position: float) -> float | None:
    if not pairs or not pairs[0][0] <= position <= pairs[-1][0]:
        return None
    positions, values = np.array(pairs).T
    return float(np.interp(position, positions, values))
