"""Correct the cost curve with measured step times."""

from __future__ import annotations

import math

from paceline.draft_budget.settings import DEFAULTS, DraftBudgetSettings
from paceline.util.timing_settings import TIMING


class CostCorrection:
    """Tracks the ratio of measured step times to the cost curve.

    There is one `CostCorrection` for each number of requests in a step. Each `CostCorrection` keeps
    two averages of log(measured / expected): one for steps with drafts, and one for steps without
    drafts. Unlike a `MovingAverage`, both averages start as plain means and limit outliers.

    A step with drafts updates the average for steps with drafts. In addition, the step moves the
    average for steps without drafts a little towards the updated average. A step without drafts
    does the reverse. An average over only a few steps is moved further, because other programs may
    have disturbed all of these steps.

    Args:
        settings: Rates and limits of the averages.
        similar: Correction for another number of requests, whose averages are the starting point;
            default: none.
    """

    def __init__(
        self,
        settings: DraftBudgetSettings = DEFAULTS,
        similar: CostCorrection | None = None,
    ) -> None:
        self._settings = settings
        # Both are indexed by whether the step had drafts.
        self._log_ratios: list[float] = [0.0, 0.0] if similar is None else [*similar._log_ratios]
        self._num_steps: list[int] = (
            [0, 0] if similar is None else [min(steps, 1) for steps in similar._num_steps]
        )
        # Sums of the measured log ratios, and their numbers; unlike the averages, neither kind of
        # step changes the values of the other.
        self._totals, self._num_measured = [0.0, 0.0], [0, 0]

    @property
    def factor(self) -> float:
        """Correction factor for steps with drafts, relative to that for plain steps."""
        if not all(self._num_steps):
            return 1.0
        return self._limited(self._log_ratios[1] - self._log_ratios[0])

    @property
    def plain(self) -> float:
        """Correction factor for plain steps, which have no drafts."""
        return self._limited(self._log_ratios[0]) if self._num_steps[0] else 1.0

    @property
    def confirms_curve(self) -> bool:
        """True if enough measured steps confirm the cost curve.

        Steps with drafts are compared with plain steps, because only this ratio matters for the
        number of draft nodes.
        """
        if min(self._num_measured) < self._settings.confirming_steps:
            return False
        plain, drafted = (
            total / count for total, count in zip(self._totals, self._num_measured, strict=True)
        )
        return abs(drafted - plain) <= math.log1p(TIMING.max_cost_error)

    def note(self, drafted: bool, seconds: float, expected: float) -> None:
        """Record the measured and the expected duration of a step.

        Args:
            drafted: Whether the step had drafts.
            seconds: Measured duration, in seconds.
            expected: Duration according to the cost curve, in seconds.
        """
        ratio, average = math.log(max(seconds, 1e-9) / expected), self._log_ratios[drafted]
        if self._num_steps[drafted] >= self._settings.outlier_steps:
            # Another program may have used the processor in the meantime.
            limit = math.log(self._settings.outlier_factor)
            ratio = min(average + limit, max(average - limit, ratio))
        self._totals[drafted] += ratio
        self._num_measured[drafted] += 1
        self._num_steps[drafted] += 1
        rate = max(self._settings.correction_rate, 1 / self._num_steps[drafted])
        self._log_ratios[drafted] += rate * (ratio - average)
        if self._num_steps[not drafted]:
            # Drafts that were too slow are eventually tried again.
            early = self._settings.early_forgetting / self._num_steps[not drafted]
            share = max(self._settings.correction_forgetting, early)
            self._log_ratios[not drafted] += share * (
                self._log_ratios[drafted] - self._log_ratios[not drafted]
            )

    def _limited(self, log_ratio: float) -> float:
        limit = self._settings.max_correction
        return min(limit, max(1 / limit, math.exp(log_ratio)))
