"""Test what `paceline doctor` reports about measured costs."""

from __future__ import annotations

import re
import time
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import torch

from paceline import LLM, demo
from paceline.cli.measured_costs import describe_conditions, describe_costs
from paceline.draft_budget.cost_curve import CostCurve, MeasuredCurve
from paceline.errors import ConfigError
from paceline.util.plurals import counted
from paceline.util.stopwatch import Conditions
from tests.support.cli import call

MODEL = ("doctor", demo.NAME, "--threads", "1", "--dtype", "float32")


def costs_in(output: str) -> str:
    return re.sub(
        r"\s+", " ", output[output.index("forward-pass cost") :].partition("batch invariance")[0]
    )


@pytest.mark.parametrize(
    ("seconds", "age"), [(1, "0 minutes"), (60, "1 minute"), (7300, "2 hours"), (2**18, "3 days")]
)
def test_the_age_of_a_measurement_has_a_singular(seconds: int, age: str) -> None:
    line = describe_conditions(Conditions(0.1, None, None, time.time() - seconds))
    assert line.startswith(f"measured {age} ago, ")


def test_costs_are_measured_on_demand_with_their_conditions(measured_costs: Path) -> None:
    status, output = call(*MODEL)
    assert status == 0
    assert "not measured with 1 thread; run with --measure" in costs_in(output)
    status, output = call(*MODEL, "--measure")
    assert status == 0
    expected = (
        r"with 1 thread, 1 row [\d.]+ ms, 4 [\d.]+x, .*128 [\d.]+x; measured 0 minutes ago,"
        r" quartiles [\d.]+% apart, \d+% of the time .*: "
    )
    assert re.search(expected, costs_in(output))
    assert list(measured_costs.glob("cost-*/*/curve.json"))


@pytest.mark.parametrize(
    ("waited", "spread", "state"),
    [(0.0, 0.01, "quiet"), (0.4, 0.01, "disturbed"), (None, 0.4, "disturbed")],
)
def test_disturbed_measurements_are_reported(
    waited: float | None, spread: float, state: str
) -> None:
    line = describe_conditions(Conditions(spread, waited, 1.25, time.time() - 3 * 24 * 3600))
    assert re.fullmatch(
        rf"measured 3 days ago, quartiles {spread:.1%} apart.*, load 1\.2: {state}.*", line
    )
    assert ("waiting for a processor" in line) == (waited is not None)


def test_row_counts_that_were_not_measured_are_named() -> None:
    quiet = Conditions(0.01, 0.0, 0.1, time.time())
    curve = CostCurve((1, 2, 12, 16), (0.002, 0.003, 0.004, 0.005))
    stored = MeasuredCurve(curve, (0.01,) * 4, quiet)
    costs = SimpleNamespace(given=False, recall=lambda: stored)
    threads = counted(torch.get_num_threads(), "thread")
    assert describe_costs(cast(LLM, SimpleNamespace(costs=costs))).startswith(
        f"with {threads}, 1 row 2 ms, 4 not measured, 8 not measured, 16 2.50x, 32 not measured,"
        " 64 not measured; measured 0 minutes ago"
    )


def test_costs_from_the_environment_are_named() -> None:
    _, output = call(*MODEL)
    assert "given by $PACELINE_COST_CURVE" in costs_in(output)


def test_measuring_needs_a_model() -> None:
    with pytest.raises(ConfigError, match="doctor: --measure needs a model"):
        call("doctor", "--measure")
