"""What `paceline doctor` says about timings, and how it repeats them."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from paceline import demo
from paceline.cli import doctor
from paceline.errors import ConfigError
from paceline.util.stopwatch import Conditions
from tests.support.cli import call

MODEL = ("doctor", demo.NAME, "--threads", "1", "--dtype", "float32")


def costs_in(said: str) -> str:
    return re.sub(
        r"\s+", " ", said[said.index("forward-pass cost") :].partition("batch invariance")[0]
    )


def test_costs_are_measured_on_demand_and_shown_with_their_conditions(measured_costs: Path) -> None:
    status, said = call(*MODEL)
    assert status == 0
    assert "not measured yet; run with --measure" in costs_in(said)
    status, said = call(*MODEL, "--measure")
    assert status == 0
    told = (
        r"1 row [\d.]+ ms, 4 [\d.]+x, .*128 [\d.]+x; measured 0 minutes ago,"
        r" quartiles [\d.]+% apart, \d+% of the time .*: "
    )
    assert re.search(told, costs_in(said))
    assert list(measured_costs.glob("cost-*/*/curve.json"))


@pytest.mark.parametrize(
    ("waited", "spread", "state"),
    [(0.0, 0.01, "quiet"), (0.4, 0.01, "disturbed"), (None, 0.4, "disturbed")],
)
def test_the_conditions_of_a_timing(waited: float | None, spread: float, state: str) -> None:
    said = doctor._conditions(Conditions(spread, waited, 1.25, time.time() - 3 * 24 * 3600))
    assert re.fullmatch(
        rf"measured 3 days ago, quartiles {spread:.1%} apart.*, load 1\.2: {state}.*", said
    )
    assert ("waiting for a processor" in said) == (waited is not None)


def test_given_costs_are_named() -> None:
    _, said = call(*MODEL)
    assert "given by $PACELINE_COST_CURVE" in costs_in(said)


def test_measuring_needs_a_model() -> None:
    with pytest.raises(ConfigError, match="doctor: --measure needs a model"):
        call("doctor", "--measure")
