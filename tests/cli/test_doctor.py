"""What `paceline doctor` says about timings, and how it repeats them."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest

from paceline import demo
from paceline.errors import ConfigError
from tests.support.cli import call

MODEL = ("doctor", "-m", demo.NAME, "--threads", "1", "--dtype", "float32")


def costs_in(said: str) -> str:
    return re.sub(r"\s+", " ", said[said.index("cost of a forward") :].partition("batch invariance")[0])


def test_costs_are_measured_on_demand_and_shown_with_their_conditions(measured_costs: Path) -> None:
    status, said = call(*MODEL)
    assert status == 0
    assert "not measured yet; --measure" in costs_in(said)
    status, said = call(*MODEL, "--measure")
    assert status == 0
    told = r"1 row [\d.]+ ms, 4 [\d.]+x, .*128 [\d.]+x; measured 0 minutes ago, quartiles [\d.]+% apart, \d+% of the time .*: "
    assert re.search(told, costs_in(said))
    (file,) = measured_costs.glob("cost-*/*/curve.json")
    kept = json.loads(file.read_text())
    for waited, spread, state in ((0.0, 0.01, "quiet"), (0.4, 0.01, "disturbed"), (None, 0.4, "disturbed")):
        age = 3 * 24 * 3600
        kept["conditions"] = {"spread": spread, "waited": waited, "load": 1.25, "made": time.time() - age}
        text = json.dumps(kept)
        file.write_text(text + " " * (file.stat().st_size - len(text)))
        _, said = call(*MODEL)
        assert re.search(rf"measured 3 days ago, quartiles {spread:.1%} apart.*load 1\.2: {state}", costs_in(said))


def test_given_costs_are_named() -> None:
    _, said = call(*MODEL)
    assert "given by $PACELINE_COST_CURVE" in costs_in(said)


def test_measuring_needs_a_model() -> None:
    with pytest.raises(ConfigError, match="doctor: got --measure without a model; expected one"):
        call("doctor", "--measure")
