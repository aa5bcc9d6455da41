"""Simulated machine whose forward passes take scripted times."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest

from paceline.draft_budget import cost_measuring as measuring
from paceline.draft_budget.costs import Costs
from paceline.util.stopwatch import Stopwatch

Forward = Callable[[int], float]


class Machine:
    """Simulated clock and forward passes for cost measurements.

    `forward` returns the seconds of a pass by its number of rows. `waited` is the share of time
    without a processor.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, forward: Forward) -> None:
        self.forward, self.waited, self.now, self.forwards = forward, 0.0, 0.0, 0
        machine = self

        class Watch(Stopwatch):
            waited = property(lambda self: machine.waited)

        monkeypatch.setattr(measuring, "Stopwatch", Watch)
        monkeypatch.setattr(measuring, "time", SimpleNamespace(perf_counter=lambda: self.now))
        monkeypatch.setattr(
            measuring, "_timed", lambda stopwatch, apart, request, rows: self._take(rows)
        )

    def _take(self, rows: int) -> float:
        self.forwards += 1
        seconds = self.forward(rows)
        self.now += seconds
        return seconds


def line(slope: float) -> Forward:
    return lambda rows: 0.001 * (1 + slope * (rows - 1))


def slope_of(costs: Costs) -> float:
    one, eight = costs.curve().of(np.array([1, 8]))
    return round(float((eight / one - 1) / 7), 4)
