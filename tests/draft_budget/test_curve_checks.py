"""Test that a cost curve in use is checked, and replaced if wrong or disturbed."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

from paceline import LLM, SamplingParams
from paceline.draft_budget.budget import DraftBudget
from paceline.draft_budget.cost_correction import CostCorrection
from paceline.draft_budget.cost_curve import CostCurve
from paceline.draft_budget.cost_measuring import ROWS, check, measure
from paceline.draft_budget.costs import Costs
from paceline.draft_budget.settings import DraftBudgetSettings
from paceline.model.cached_lm import CachedLM
from paceline.util.stopwatch import Conditions
from paceline.util.timing_settings import TIMING
from tests.support.machine import Machine, line, slope_of
from tests.support.shared import Pair


def test_a_check_compares_the_cost_of_rows(model: CachedLM, machine: Machine) -> None:
    curve = measure(model).curve
    # a slower processor: a row costs the same share of a step
    machine.forward = lambda rows: 3 * line(0.03)(rows)
    found = check(model, curve)
    assert found is not None
    assert found.confirms
    machine.forward = line(0.1)
    found = check(model, curve)
    assert found is not None
    assert found.off > 0.4
    assert not found.confirms
    machine.forward = lambda rows: 10.0
    before = machine.forwards
    assert check(model, CostCurve((1, 128), (10.0, 20.0))) is None
    assert machine.forwards == before


@pytest.mark.usefixtures("measured_costs")
def test_a_requested_measurement_replaces_a_quiet_curve_only_if_quiet(
    model: CachedLM, machine: Machine
) -> None:
    stored: list[float] = []
    for slope, waited in ((0.02, 0.3), (0.03, 0.3), (0.04, 0.0), (0.12, 0.3), (0.05, 0.0)):
        machine.forward, machine.waited = line(slope), waited
        measured = Costs(model).measure()
        assert Costs(model).recall() == measured
        stored.append(slope_of(Costs(model)))
    assert stored == [0.02, 0.03, 0.04, 0.04, 0.05]


@pytest.mark.usefixtures("measured_costs")
@pytest.mark.parametrize(
    ("first", "later", "waited", "found"),
    [
        ((0.12, 0.0), 0.03, 0.0, 0.03),  # wrong without a sign of disturbance
        ((0.12, 0.3), 0.03, 0.0, 0.03),
        ((0.031, 0.3), 0.03, 0.0, 0.03),  # disturbed, though almost right
        ((0.03, 0.0), 0.031, 0.0, 0.03),
        ((0.03, 0.0), 0.12, 0.3, 0.03),  # a disturbed check does not replace a quiet curve
        ((0.12, 0.3), 0.03, 0.3, 0.03),
        ((0.03, 0.3), 0.031, 0.3, 0.03),
    ],
)
@pytest.mark.parametrize("when", ["at the next load", "in use"])
def test_wrong_or_disturbed_curve_is_replaced(
    model: CachedLM,
    machine: Machine,
    when: str,
    first: tuple[float, float],
    later: float,
    waited: float,
    found: float,
) -> None:
    """Check row costs and shares of waiting time at first and later."""
    machine.forward, machine.waited = line(first[0]), first[1]
    costs = Costs(model)
    assert slope_of(costs) == first[0]
    machine.forward, machine.waited = line(later), waited
    if when == "in use":
        changed = costs.renew(TIMING.first_pause_s + 1)
    else:
        costs = Costs(model)
        before = machine.forwards
        assert slope_of(costs) == first[0]
        assert machine.forwards == before, "the first token waits for no check"
        changed = costs.renew(TIMING.loaded_pause_s)
    assert changed == (found != first[0])
    assert slope_of(costs) == found
    assert slope_of(Costs(model)) == found  # it is stored


def seconds_of_checks(costs: Costs, machine: Machine, num_seconds: int) -> list[int]:
    """Use a curve for some seconds; return the seconds at which it was checked."""
    checked = []
    for second in range(1, num_seconds + 1):
        before = machine.forwards
        assert not costs.renew(1.0)
        if machine.forwards > before:
            checked.append(second)
    return checked


@pytest.mark.usefixtures("measured_costs")
def test_checks_in_use_become_rare(model: CachedLM, machine: Machine) -> None:
    costs = Costs(model)
    costs.curve()
    checked = seconds_of_checks(costs, machine, 1000)
    pauses = np.diff(checked)
    assert len(checked) == 4
    assert all(later == 2 * earlier for earlier, later in itertools.pairwise(pauses))


@pytest.mark.usefixtures("measured_costs")
@pytest.mark.parametrize("waited", [0.0, 0.3])
def test_checks_take_a_small_share_of_time(
    model: CachedLM, machine: Machine, waited: float
) -> None:
    """Check also a machine that stays busy, with a model whose rows are costly."""
    machine.forward, machine.waited = (lambda rows: 0.009 + 0.005 * (rows - 1)), waited
    costs = Costs(model)
    costs.curve()
    begin = machine.now
    checks = 0
    for second in range(1, 2000):
        before = machine.now
        assert not costs.renew(1.0)
        checks += machine.now > before
        assert machine.now - begin <= TIMING.max_check_share * second
    assert checks >= 4


@pytest.mark.usefixtures("measured_costs")
def test_check_after_loading_comes_in_addition(model: CachedLM, machine: Machine) -> None:
    Costs(model).curve()
    costs = Costs(model)
    costs.curve()
    checked = seconds_of_checks(costs, machine, 200)
    assert checked == [TIMING.loaded_pause_s, TIMING.loaded_pause_s + TIMING.first_pause_s, 181]


@pytest.mark.usefixtures("measured_costs")
def test_slow_model_is_not_measured_in_use(model: CachedLM, machine: Machine) -> None:
    machine.forward, machine.waited = (lambda rows: 0.8), 0.3
    costs = Costs(model)
    costs.curve()
    before = machine.forwards
    assert not costs.renew(1000.0)
    assert machine.forwards == before


@pytest.mark.usefixtures("measured_costs")
def test_slow_model_is_measured_again_under_less_load(
    model: CachedLM, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.forward, machine.waited = (lambda rows: 0.8), 0.3
    for calmer in (False, True):
        monkeypatch.setattr(Conditions, "calmer_now", calmer)
        Costs(model).curve()
        before = machine.forwards
        Costs(model).curve()
        assert (machine.forwards > before) == calmer


def test_replacing_a_curve_is_limited_in_time(model: CachedLM, machine: Machine) -> None:
    """Check the time limit, as requests wait; the cost of long texts is not measured again."""
    machine.forward = lambda rows: 0.02 * (1 + 0.03 * (rows - 1))
    known = CostCurve((1, 65), (0.02, 0.04), (1e-6, 3e-6))
    curve = measure(model, max_seconds=TIMING.renewal_seconds, known=known).curve
    assert machine.now < 1.2 * TIMING.renewal_seconds
    assert len(curve.rows) > 3
    assert curve.further[0] == 1e-6
    assert curve.further[curve.rows.index(64)] == pytest.approx(1e-6 + 2e-6 * 63 / 64)


def test_engine_uses_the_new_curve(pair: Pair, machine: Machine, measured_costs: Path) -> None:
    """Check that drafting starts once rows have become cheap, with the same answers."""
    machine.forward, machine.waited = line(10.0), 0.3
    llm = LLM(pair.target, "sssd", max_batch=1)
    params = SamplingParams(max_new_tokens=40)
    (first,) = llm.generate([pair.prompts[0] * 2], params)
    machine.forward, machine.waited = line(0.001), 0.0
    engine = llm._engine
    assert engine.draft_budget is not None
    engine.draft_budget._seconds_used = TIMING.first_pause_s
    (second,) = llm.generate([pair.prompts[0] * 2], params)
    (third,) = llm.generate([pair.prompts[0] * 2], params)
    assert first.token_ids == second.token_ids == third.token_ids
    assert first.stats.drafted_tokens < third.stats.drafted_tokens
    curve = llm.cost_curve
    assert curve is not None
    assert curve.seconds[ROWS.index(8)] < 1.1 * curve.seconds[0]


@pytest.mark.usefixtures("measured_costs")
def test_disturbed_curve_is_checked_every_minute(model: CachedLM, machine: Machine) -> None:
    """Check while the machine stays busy; the first quiet check replaces the curve."""
    machine.waited = 0.3
    costs = Costs(model)
    costs.curve()
    checked = []
    for second in range(400):
        before = machine.forwards
        assert not costs.renew(1.0)
        if machine.forwards > before:
            checked.append(second)
    assert np.diff(checked).tolist() == [10, 20, 40, 60, 60, 60, 60, 60]
    machine.waited = 0.0
    assert any(costs.renew(1.0) for _ in range(60))
    known = costs.recall()
    assert known is not None
    assert known.conditions.quiet


@pytest.mark.usefixtures("measured_costs")
def test_loaded_curve_can_be_checked_before_use(model: CachedLM, machine: Machine) -> None:
    Costs(model).curve()
    costs = Costs(model)
    budget = DraftBudget(costs.curve, costs.renew)
    before = machine.forwards
    budget.check_loaded()
    assert machine.forwards == before  # the curve is not loaded yet
    costs.curve()
    before = machine.forwards
    budget.check_loaded()
    assert machine.forwards > before
    assert seconds_of_checks(costs, machine, 100) == [TIMING.first_pause_s]


@pytest.mark.usefixtures("measured_costs")
@pytest.mark.parametrize("waited", [0.0, 0.4])
def test_measured_steps_replace_the_first_check(
    model: CachedLM, machine: Machine, waited: float
) -> None:
    """Only later checks, and checks of a disturbed measurement, run forward passes."""
    machine.waited = waited
    Costs(model).curve()
    costs = Costs(model)
    costs.curve()
    before = machine.forwards
    assert not costs.renew(TIMING.loaded_pause_s, lambda: True)
    assert (machine.forwards == before) == (waited == 0.0)
    before = machine.forwards
    costs.renew(2 * TIMING.first_pause_s, lambda: True)
    assert machine.forwards > before


def correction_of(plain: float, drafted: float, count: int) -> CostCorrection:
    """Return the correction after some steps that took a multiple of the expected time."""
    correction = CostCorrection()
    for _ in range(count):
        correction.note(False, plain, 1.0)
        correction.note(True, drafted, 1.0)
    return correction


def test_steps_confirm_a_curve_by_the_ratio_of_their_times() -> None:
    many = DraftBudgetSettings().confirming_steps
    assert correction_of(1.3, 1.3, many).confirms_curve
    assert not correction_of(1.0, 1.5, many).confirms_curve
    assert not correction_of(1.3, 1.3, many - 1).confirms_curve
    assert not CostCorrection().confirms_curve
    # Later steps of one kind change only their own mean.
    drifted = correction_of(1.0, 1.5, many)
    for _ in range(500):
        drifted.note(True, 1.5, 1.0)
    assert not drifted.confirms_curve


@pytest.mark.usefixtures("measured_costs")
def test_fresh_curve_is_not_checked(model: CachedLM, machine: Machine) -> None:
    costs = Costs(model)
    costs.curve()
    before = machine.forwards
    DraftBudget(costs.curve, costs.renew).check_loaded()
    assert machine.forwards == before
