"""The cost curve of one engine: kept from an earlier run or measured, checked in use, and replaced
where it is off.

A curve that other programs disturbed is used, but never trusted for good: a check under quiet
conditions replaces it. $PACELINE_COST_CURVE names a JSON file with the curve of every model (`rows`
and `seconds`, two lists); nothing is measured then.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from paceline.draft_budget import cost_measuring
from paceline.draft_budget.cost_curve import CostCurve, MeasuredCurve
from paceline.draft_budget.cost_measuring import ROWS
from paceline.errors import ConfigError
from paceline.model.cached_lm import CachedLM
from paceline.util import result_cache
from paceline.util.environment_key import environment_key
from paceline.util.files import parse_json
from paceline.util.timing_settings import TIMING

VARIABLE = "PACELINE_COST_CURVE"
_KIND = "cost-v12"  # another number when what is measured or written changes


class Costs:
    """What forwards of a model cost on this machine, in the same circumstances.

    Args:
        model: it is used with.
        most_rows: a forward may have; None = any number.
        given: the curve to use; None = the one of $PACELINE_COST_CURVE, else one that is measured.
    Raises:
        ConfigError: $PACELINE_COST_CURVE names no such file.
    """

    def __init__(
        self, model: CachedLM, most_rows: int | None = None, given: CostCurve | None = None
    ) -> None:
        self._model, self._most = model, min(ROWS[-1], most_rows or ROWS[-1])
        self._given = given or _of_environment()
        self._measured: MeasuredCurve | None = None
        self._used, self._due, self._pause = 0.0, 0.0, 0.0  # seconds

    @property
    def given(self) -> bool:
        """Whether the curve was given: no clock corrects it then."""
        return self._given is not None

    def curve(self) -> CostCurve:
        """Return the curve; read or measured when it is first needed."""
        if self._given is not None:
            return self._given
        if self._measured is None:
            self._adopt(self._found())
            assert self._measured is not None
        return self._measured.curve

    def recall(self) -> MeasuredCurve | None:
        """Return the curve that is in use or kept, without measuring; None where there is none."""
        if self.given or self._measured is not None:
            return self._measured
        return result_cache.load(self._place(), MeasuredCurve.read)

    def measure(self) -> MeasuredCurve:
        """Measure the curve anew, and keep it."""
        measured = cost_measuring.measure(self._model, self._most)
        self._keep(measured)
        return measured

    def renew(self, seconds: float) -> bool:
        """Check the curve, now and then, between two steps of the engine; return whether another
        one replaces it.

        Args:
            seconds: of use since the last call.
        """
        if self._measured is None:
            return False
        self._used += seconds
        if self._used < self._due:
            return False
        before = self._measured
        after = self._checked(before, TIMING.renewal_seconds)
        if after is not before:
            self._keep(after)
            return True
        self._pause *= 2
        if not before.conditions.quiet:
            self._pause = min(self._pause, TIMING.first_pause_s)
        self._due = self._used + self._pause
        return False

    def _found(self) -> MeasuredCurve:
        """Return the kept curve, checked, or measure one."""
        fresh: list[MeasuredCurve] = []

        def find() -> MeasuredCurve:
            fresh.append(cost_measuring.measure(self._model, self._most))
            return fresh[0]

        kept = result_cache.load_or_compute(self._place(), find, MeasuredCurve.read)
        if fresh:
            return kept
        checked = self._checked(kept)
        if checked is not kept:
            self._keep(checked)
        return checked

    def _checked(self, curve: MeasuredCurve, most_seconds: float | None = None) -> MeasuredCurve:
        """Return the curve where a few forwards confirm it, else a new one.

        Args:
            most_seconds: of a new measurement, where the curve is in use; None = at load.
        """
        found, quiet = cost_measuring.check(self._model, curve.curve), curve.conditions.quiet
        if found is None:  # a slow model: in use, only what its steps take corrects the curve
            doubtful = most_seconds is None and not quiet and curve.conditions.calmer_now
        elif quiet:
            # a disturbed check says nothing about a quiet curve
            doubtful = found.quiet and not found.confirms
        else:
            doubtful = found.quiet or not found.confirms
        if not doubtful:
            return curve
        if most_seconds is None:
            return cost_measuring.measure(self._model, self._most)
        # A request waits for this. The cost of longer texts takes longest, and is kept.
        return cost_measuring.measure(self._model, self._most, most_seconds, curve.curve)

    def _adopt(self, measured: MeasuredCurve) -> None:
        self._measured = measured
        quiet = measured.conditions.quiet
        self._pause = TIMING.first_pause_s if quiet else TIMING.disturbed_pause_s
        self._due = self._used + self._pause

    def _keep(self, measured: MeasuredCurve) -> None:
        self._adopt(measured)
        result_cache.replace(self._place(), measured)

    def _place(self) -> result_cache.ResultKey:
        model = self._model
        facts = environment_key(
            model.model,
            batch_invariant=model.architecture.by_position,
            rows=[model.min_rows, self._most],
            products=[len(model.products.modules), model.products.least, model.products.most],
        )
        return result_cache.ResultKey(
            _KIND, facts, f"forward costs of {model.model.__class__.__name__}", "curve.json"
        )


def _of_environment() -> CostCurve | None:
    """Return the curve that $PACELINE_COST_CURVE names; None where it is not set."""
    named = os.environ.get(VARIABLE)
    if not named:
        return None
    try:
        content = parse_json(Path(named).read_bytes())
        rows, seconds = (np.array(content[name], dtype=float) for name in ("rows", "seconds"))
        usable = rows.ndim == 1 and rows.shape == seconds.shape and rows[0] == 1 and seconds[0] > 0
        if not usable or (np.diff(rows) <= 0).any() or (np.diff(seconds) < 0).any():
            raise ValueError("rows must ascend from 1, and seconds must not fall")
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise ConfigError(
            f"{VARIABLE}: got {named!r}, which cannot be used ({error}); expected a JSON file with"
            " 'rows' and 'seconds', two lists of the same length."
        ) from error
    return CostCurve(tuple(int(one) for one in rows), tuple(map(float, seconds)))
