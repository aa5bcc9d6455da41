"""Load, measure, check and replace an engine's cost curve.

If other programs disturbed a measurement, the measured curve is still used until a check on an idle
machine replaces it. The checks use only a small fraction of the engine's running time. The
environment variable $PACELINE_COST_CURVE may name a JSON file with one curve (two lists, `rows` and
`seconds`). The engine then uses this curve for every model, and measures nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np

from paceline.core.timed_target import TimedTarget
from paceline.draft_budget import cost_measuring
from paceline.draft_budget.cost_curve import CostCurve, MeasuredCurve
from paceline.draft_budget.settings import DEFAULTS, DraftBudgetSettings
from paceline.errors import ConfigError
from paceline.util import result_cache
from paceline.util.files import parse_json
from paceline.util.timing_settings import TIMING

VARIABLE = "PACELINE_COST_CURVE"
_KIND = "cost-v14"  # changes when the measured or saved data change


class Costs:
    """The cost of a model's forward passes on this machine.

    Args:
        model: Model whose forward passes are timed.
        max_rows: Maximum number of rows in a forward pass; None means no limit.
        given: Curve to use. With None, the curve comes from $PACELINE_COST_CURVE if that is set,
            and is measured otherwise.
        settings: Row counts and limits for the measurement.
    Raises:
        ConfigError: $PACELINE_COST_CURVE does not name a valid file.
    """

    def __init__(
        self,
        model: TimedTarget,
        max_rows: int | None = None,
        given: CostCurve | None = None,
        settings: DraftBudgetSettings = DEFAULTS,
    ) -> None:
        most = max(settings.measured_rows)
        self._model, self._max_rows, self._settings = model, min(most, max_rows or most), settings
        self._given = given or _curve_of_environment()
        self._measured: MeasuredCurve | None = None
        self._used_s, self._due_s, self._pause_s = 0.0, 0.0, 0.0
        self._checks_load = False  # whether the next check is the first one of a loaded curve

    @property
    def given(self) -> bool:
        """True if the user supplied the curve; measured steps then do not adjust it."""
        return self._given is not None

    def curve(self) -> CostCurve:
        """Return the curve; load or measure it on first use."""
        if self._given is not None:
            return self._given
        if self._measured is None:
            self._load_or_measure()
            assert self._measured is not None
        return self._measured.curve

    def recall(self) -> MeasuredCurve | None:
        """Return the cost curve in use, or else the cached one; None if neither exists."""
        if self.given or self._measured is not None:
            return self._measured
        return result_cache.load(self._key(), MeasuredCurve.read)

    def measure(self) -> MeasuredCurve:
        """Measure the cost curve again, and store it in the cache.

        If other programs disturbed the measurement, a stored curve from a quiet machine is kept.

        Returns:
            The curve that is stored after the measurement.
        """
        before, measured = self.recall(), self._measure()
        if before is not None and before.conditions.quiet and not measured.conditions.quiet:
            return before
        self._replace(measured)
        return measured

    def renew(self, seconds: float, is_confirmed: Callable[[], bool] = lambda: False) -> bool:
        """Check the curve between two steps, if a check is due.

        Args:
            seconds: Expected duration of the steps since the previous call, in seconds.
            is_confirmed: Function that returns whether measured steps confirm the curve. Called
                only for the first check of a curve from disk, and only if nothing disturbed the
                measurement of the curve. If the result is True, the check runs no forward passes.
                The default returns False.
        Returns:
            Whether a new curve replaced the old one.
        """
        if self._measured is None:
            return False
        self._used_s += seconds
        if self._used_s < self._due_s:
            return False
        before = self._measured
        is_first, self._checks_load = self._checks_load, False
        if is_first and before.conditions.quiet and is_confirmed():
            self._pause_s *= 2
            self._schedule(0.0)
            return False
        after = self._checked(before)
        spent = cost_measuring.check_seconds(before.curve)
        if after is not before:
            spent += cost_measuring.measuring_seconds(after.curve, TIMING.renewal_seconds)
            self._replace(after, spent)
            return True
        self._pause_s *= 2
        if not before.conditions.quiet:
            self._pause_s = min(self._pause_s, TIMING.first_pause_s)
        self._schedule(spent)
        return False

    def _load_or_measure(self) -> None:
        """Adopt the cached cost curve, or measure a new one."""
        fresh: list[MeasuredCurve] = []

        def compute() -> MeasuredCurve:
            fresh.append(self._measure())
            return fresh[0]

        loaded = result_cache.load_or_compute(self._key(), compute, MeasuredCurve.read)
        if fresh:
            self._adopt(loaded)
        elif self._is_outdated(loaded):
            self._replace(self._measure())
        else:
            self._adopt(loaded)
            self._checks_load = True
            self._due_s = self._used_s + TIMING.loaded_pause_s
            self._pause_s /= 2  # `renew` doubles the value after this additional check

    def _is_outdated(self, loaded: MeasuredCurve) -> bool:
        """Return whether the cost curve of a slow model should be measured again.

        The curve of a slow model is not checked, because checks would take too long. This curve is
        measured again only if other programs disturbed the measurement and the machine has become
        less busy since.
        """
        is_slow = not cost_measuring.check_rows(loaded.curve)
        return is_slow and loaded.conditions.doubtful

    def _checked(self, curve: MeasuredCurve) -> MeasuredCurve:
        """Return the curve if a few forward passes confirm it, otherwise a new curve."""
        check = cost_measuring.check(self._model, curve.curve)
        if check is None:  # the model is slow: only measured steps correct the curve
            return curve
        if curve.conditions.quiet:
            # A check disturbed by other load says nothing about a curve measured on an idle
            # machine.
            doubtful = check.quiet and not check.confirms
        else:
            doubtful = check.quiet or not check.confirms
        # A request waits for this measurement, so it skips the slowest part: the cost of longer
        # texts, which is copied from the old curve.
        return self._measure(TIMING.renewal_seconds, curve.curve) if doubtful else curve

    def _measure(
        self, max_seconds: float | None = None, known: CostCurve | None = None
    ) -> MeasuredCurve:
        return cost_measuring.measure(
            self._model, self._max_rows, max_seconds, known, self._settings
        )

    def _adopt(self, measured: MeasuredCurve, spent: float = 0.0) -> None:
        self._measured = measured
        quiet = measured.conditions.quiet
        self._pause_s = TIMING.first_pause_s if quiet else TIMING.disturbed_pause_s
        self._schedule(max(spent, cost_measuring.check_seconds(measured.curve)))

    def _schedule(self, spent: float) -> None:
        """Schedule the next check; the longer this check took, the later the next one.

        Args:
            spent: Duration of this check in seconds.
        """
        self._due_s = self._used_s + max(self._pause_s, spent / TIMING.max_check_share)

    def _replace(self, measured: MeasuredCurve, spent: float = 0.0) -> None:
        self._adopt(measured, spent)
        result_cache.replace(self._key(), measured)

    def _key(self) -> result_cache.ResultKey:
        key, name = self._model.cost_key(self._max_rows), type(self._model.model).__name__
        return result_cache.ResultKey(_KIND, key, f"forward costs of {name}", "curve.json")


def _curve_of_environment() -> CostCurve | None:
    """Return the curve from the file in $PACELINE_COST_CURVE, or None."""
    path = os.environ.get(VARIABLE)
    if not path:
        return None
    try:
        content = parse_json(Path(path).read_bytes())
        rows, seconds = (np.array(content[name], dtype=float) for name in ("rows", "seconds"))
        usable = rows.ndim == 1 and rows.shape == seconds.shape and rows[0] == 1 and seconds[0] > 0
        if not usable or (np.diff(rows) <= 0).any() or (np.diff(seconds) < 0).any():
            raise ValueError("rows must increase, starting at 1, and seconds must not decrease")
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise ConfigError(
            f"{VARIABLE}: got {path!r}, which cannot be used ({error}); expected a JSON file with"
            " 'rows' and 'seconds', two lists of the same length."
        ) from error
    return CostCurve(tuple(map(int, rows)), tuple(map(float, seconds)))
