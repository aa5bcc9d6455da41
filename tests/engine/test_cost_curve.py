"""What forwards cost, measured once."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from paceline import LLM
from paceline.engine import cost_curve as costs
from paceline.engine.cost_curve import cost_curve, measure
from paceline.engine.sequence import Sequence
from tests.support.shared import Pair


def test_costs_are_measured_once_and_never_fall(pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path))
    model = LLM(pair.target, "none").model
    curve = cost_curve(model)
    assert curve.rows == costs.ROWS
    assert list(curve.seconds) == sorted(curve.seconds)
    assert model.open_sequences == 0
    monkeypatch.setattr(costs, "measure", None)
    assert cost_curve(model) == curve
    beyond = curve.of(np.array([1, 128, 256, 384]))
    assert beyond[0] == curve.seconds[0]
    assert beyond[3] - beyond[2] == pytest.approx(beyond[2] - beyond[1])


def test_what_a_long_text_adds_is_measured(pair: Pair) -> None:
    curve = measure(LLM(pair.target, "none").model)
    assert (len(curve.further) == len(curve.rows)) == (LLM(pair.target, "none").model.context_length > 640)
    assert list(curve.further) == sorted(curve.further)
    assert min(curve.further, default=0.0) >= 0.0


@pytest.mark.parametrize(("forward", "least"), [(0.001, len(costs.ROWS)), (0.17, 8), (0.8, 3), (30.0, 2)])
def test_a_slow_model_is_asked_for_fewer_numbers_of_rows_which_reach_as_far(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, forward: float, least: int
) -> None:
    """Sixteen rows for the price of one, each further one for a hundredth of it: what 48 cost is not to be guessed from these."""
    clock = [0.0]

    def costly(rows: int) -> float:
        return forward * (1 + max(0, rows - 16) / 100)

    def timed(apart: Any, seq: Sequence, rows: int) -> float:
        clock[0] += costly(rows)
        return costly(rows)

    monkeypatch.setattr(costs, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
    monkeypatch.setattr(costs, "_timed", timed)
    curve = measure(LLM(pair.target, "none").model)
    assert len(curve.rows) >= least
    assert clock[0] < 40 or least == 2
    if least == 2:  # as few as can be
        assert curve.rows == (1, 16)
        assert curve.of(np.array([24]))[0] >= curve.seconds[1]
    else:
        assert curve.of(np.array([16, 48, 64])) == pytest.approx([costly(rows) for rows in (16, 48, 64)], rel=0.05)
    if forward < 1 and curve.further:
        assert len(curve.further) == len(curve.rows)
