"""Test how the cost of forward passes is measured and stored."""

from __future__ import annotations

import itertools
import json
import math
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from paceline import LLM, SamplingParams
from paceline.draft_budget import cost_measuring as measuring
from paceline.draft_budget.cost_correction import CostCorrection
from paceline.draft_budget.cost_curve import CostCurve, MeasuredCurve
from paceline.draft_budget.cost_measuring import ROWS, measure
from paceline.draft_budget.costs import Costs
from paceline.errors import ConfigError
from paceline.model.cached_lm import CachedLM
from paceline.util import result_cache, stopwatch
from paceline.util.stopwatch import Conditions, Stopwatch, agree, spread_of
from tests.support.machine import Machine, line, slope_of
from tests.support.shared import Pair


@pytest.mark.usefixtures("measured_costs")
def test_costs_are_measured_once_and_never_fall(
    model: CachedLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    costs = Costs(model)
    curve = costs.curve()
    assert curve.rows == ROWS
    assert list(curve.seconds) == sorted(curve.seconds)
    assert model.open_sequences == 0
    known = costs.recall()
    assert known is not None
    assert len(known.spreads) == len(ROWS)
    monkeypatch.setattr(measuring, "measure", None)
    monkeypatch.setattr(
        measuring,
        "check",
        lambda model, curve: measuring.Check(0.0, True) if known.conditions.quiet else None,
    )
    monkeypatch.setattr(Conditions, "calmer_now", False)
    assert Costs(model).recall() == known
    assert Costs(model).curve() == curve
    beyond = curve.of(np.array([1, 128, 256, 384]))
    assert beyond[0] == curve.seconds[0]
    assert beyond[3] - beyond[2] == pytest.approx(beyond[2] - beyond[1])


def test_cost_of_long_texts_is_measured(model: CachedLM) -> None:
    curve = measure(model).curve
    assert (len(curve.further) == len(curve.rows)) == (model.context_length > 640)
    assert list(curve.further) == sorted(curve.further)
    assert min(curve.further, default=0.0) >= 0.0


@pytest.mark.parametrize(("forward", "least"), [(0.001, len(ROWS)), (0.17, 8), (0.8, 3), (30.0, 2)])
def test_slow_models_are_measured_at_fewer_row_counts(
    model: CachedLM, machine: Machine, forward: float, least: int
) -> None:
    """Check 16 rows for the price of one and a hundredth for each further row.

    The cost of 48 rows cannot be extrapolated from the first 16.
    """

    def costly(rows: int) -> float:
        return forward * (1 + max(0, rows - 16) / 100)

    machine.forward = costly
    curve = measure(model).curve
    assert len(curve.rows) >= least
    assert machine.now < 40 or least == 2
    if least == 2:  # the minimum
        assert curve.rows == (1, 16)
        assert curve.of(np.array([24]))[0] >= curve.seconds[1]
    else:
        assert curve.of(np.array([16, 48, 64])) == pytest.approx(
            [costly(rows) for rows in (16, 48, 64)], rel=0.05
        )
    if forward < 1 and curve.further:
        assert len(curve.further) == len(curve.rows)


def test_disturbed_measurement_is_longer_and_marked(model: CachedLM, machine: Machine) -> None:
    """Check a curve where two forward passes of three take up to four times as long."""
    quiet = measure(model)
    assert quiet.conditions.quiet
    few, honest, turns = machine.forwards, machine.forward, itertools.count()
    machine.forward = lambda rows: honest(rows) * (1.0, 2.5, 4.0)[next(turns) % 3]
    disturbed = measure(model)
    assert machine.forwards - few > few
    assert not disturbed.conditions.quiet
    assert disturbed.curve.seconds == pytest.approx(quiet.curve.seconds, rel=0.1)


def test_waiting_for_a_processor_marks_a_measurement(model: CachedLM, machine: Machine) -> None:
    machine.waited = 0.3
    found = measure(model)
    assert (found.conditions.spread, found.conditions.waited, found.conditions.quiet) == (
        0.0,
        0.3,
        False,
    )


def test_damaged_curve_is_measured_again(
    model: CachedLM, machine: Machine, measured_costs: Path
) -> None:
    Costs(model).curve()
    (file,) = measured_costs.glob("*/*/curve.json")
    content = json.loads(file.read_text())
    content["curve"]["seconds"].pop()
    text = json.dumps(content)
    # padded to the size in its card
    file.write_text(text + " " * (file.stat().st_size - len(text)))
    assert Costs(model).recall() is None
    assert Costs(model).curve().rows == ROWS


def test_unwritable_cache_stores_no_curve(
    model: CachedLM, machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PACELINE_COST_CURVE")
    (tmp_path / "file").touch()
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "file"))
    costs = Costs(model)
    assert slope_of(costs) == 0.03
    machine.forward = line(0.12)
    assert costs.renew(1000.0)
    assert slope_of(costs) == 0.12


def test_given_curve_is_neither_measured_nor_corrected(
    pair: Pair, machine: Machine, measured_costs: Path
) -> None:
    given = CostCurve((1, 64), (100.0, 200.0))
    counts = []
    for seconds in (1e-3, 10.0):
        machine.forward = lambda rows, seconds=seconds: seconds  # type: ignore[misc]
        llm = LLM(pair.target, "sssd", cost_curve=given)
        outs = llm.generate(pair.prompts, SamplingParams(max_new_tokens=40))
        assert [out.token_ids for out in outs] == pair.answers
        counts.append([out.stats.query_tokens for out in outs])
        assert llm.cost_curve == given
        assert llm.plain_seconds == 100.0
    assert counts[0] == counts[1]
    assert machine.forwards == 0
    assert not list(measured_costs.glob("cost-*"))


@pytest.mark.parametrize(
    "content",
    [
        '{"rows": [1, 8]}',
        '{"rows": [2, 8], "seconds": [1, 2]}',
        '{"rows": [1, 8], "seconds": [2, 1]}',
        "[]",
        "no",
    ],
)
def test_invalid_curve_file_is_refused(
    model: CachedLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str
) -> None:
    monkeypatch.setenv("PACELINE_COST_CURVE", str(tmp_path / "curve.json"))
    (tmp_path / "curve.json").write_text(content)
    with pytest.raises(ConfigError, match=r"PACELINE_COST_CURVE: got .*; expected a JSON file"):
        Costs(model)


def test_one_stalled_step_does_not_change_costs() -> None:
    pace = CostCorrection()
    for seconds in [1.0] * 10 + [1000.0]:
        pace.note(False, seconds, 1.0)
    assert pace.plain < 1.06


@pytest.mark.parametrize("drafted", [False, True])
def test_a_ratio_of_one_disturbed_step_is_soon_forgotten(drafted: bool) -> None:
    """Check that one slow step neither makes drafts seem free nor stops them for long."""
    pace = CostCorrection()
    pace.note(drafted, 4.2, 1.0)
    pace.note(not drafted, 1.4, 1.0)
    assert abs(math.log(pace.factor)) > 1.0
    for _ in range(50):
        pace.note(not drafted, 1.4, 1.0)
    assert abs(math.log(pace.factor)) < 0.1


def test_agreement_of_repeated_measurements() -> None:
    assert not agree([1.0, 1.0])
    assert agree([1.5, 1.0, 1.02])
    assert not agree([1.5, 1.0, 1.1])
    assert spread_of([1.0]) == 0.0
    assert spread_of([1.0, 1.0, 1.2, 1.2]) == pytest.approx(0.2)


def test_one_thread_is_timed_by_processor_time() -> None:
    """Check that waiting does not count."""
    watch = Stopwatch(torch.device("cpu"))
    assert watch.waited is None  # nothing was timed
    assert watch.seconds(lambda: time.sleep(0.05)) < 0.04
    assert watch.waited is not None
    assert watch.waited > 0.2


def test_waiting_of_several_threads_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check the system's queue counters; threads that have ended count as zero."""
    queue_seconds, now = [2.0], [10.0]
    monkeypatch.setattr(stopwatch, "_queued", lambda: queue_seconds[0])
    monkeypatch.setattr(stopwatch, "clock_of", lambda device: time.perf_counter)
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    watch = Stopwatch(torch.device("cpu"))
    queue_seconds[0], now[0] = 2.5, 12.0
    assert watch.seconds(lambda: None) == 0.0
    assert watch.waited == pytest.approx(0.125)
    queue_seconds[0] = 1.0
    assert watch.waited == 0.0
    assert Stopwatch(torch.device("meta")).waited is None

    def call() -> None:
        now[0] += 1.0
        queue_seconds[0] += 0.5

    assert (
        Stopwatch.suited(torch.device("cpu"), call).seconds(lambda: None) < 0.5
    )  # timed by the processor's clock
    assert Stopwatch.suited(torch.device("meta"), call).seconds(call) == 1.0


def test_stored_curve_is_loaded(model: CachedLM, machine: Machine, measured_costs: Path) -> None:
    key = result_cache.ResultKey("cost-test-v1", "facts", "name", "curve.json")
    found = measure(model)
    result_cache.replace(key, found)
    assert result_cache.load(key, MeasuredCurve.read) == found
    other = replace(found, conditions=replace(found.conditions, waited=None, load=None))
    result_cache.replace(key, other)
    assert result_cache.load(key, MeasuredCurve.read) == other
