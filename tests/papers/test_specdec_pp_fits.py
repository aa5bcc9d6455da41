"""Test the figures of the SpecDec++ paper: times fitted, latency, fronts."""

from __future__ import annotations

import dataclasses

import pytest

from paceline.drafters.specdec_pp.card import latency
from papers.specdec_pp import paper_settings
from papers.specdec_pp.costs import (
    AnswerCost,
    cheapest,
    discard_at,
    fit_times,
    pareto_front,
    verification_at,
)
from papers.specdec_pp.picks import against
from papers.specdec_pp.result import RulePoint
from tests.papers.test_specdec_pp_options import PAPER_PAIR


def test_fit_recovers_times() -> None:
    works = [
        AnswerCost(draft, target, 0.002 * draft + 0.01 * target)
        for draft, target in ((10, 4), (12, 3), (40, 9), (25, 25))
    ]
    times = fit_times(works)
    assert times is not None
    assert (times.draft, times.target, times.r_squared) == pytest.approx((0.002, 0.01, 1.0))
    assert times.answers == 4
    noisy = fit_times([dataclasses.replace(works[0], seconds=0.2), *works[1:]])
    assert noisy is not None
    assert noisy.r_squared is not None
    assert 0.3 < noisy.r_squared < 0.95
    alone = fit_times([AnswerCost(0, count, 0.01 * count) for count in (5, 9)])
    assert alone is not None
    assert alone.draft is None
    assert alone.target == pytest.approx(0.01)


def test_undetermined_times_are_not_fitted() -> None:
    assert fit_times([]) is None
    assert fit_times([AnswerCost(8, 4, 1.0), AnswerCost(16, 8, 2.0)]) is None
    same = fit_times([AnswerCost(0, 4, 1.0), AnswerCost(0, 4, 1.5)])
    assert same is not None
    assert same.r_squared is None


def test_latency_equals_the_papers() -> None:
    """Section 2.1 has 0.164 target forwards per token and about 27.06 tokens/s.

    The speed is a mean over prompts; no token is discarded.
    """
    draft, target = PAPER_PAIR
    assert 1 / latency(draft, target, RulePoint("oracle", 0.0, 0.164)) == pytest.approx(
        27.06, rel=0.05
    )
    assert latency(1.0, 5.0, RulePoint("plain", 0.0, 1.0)) == 5.0
    discards, forwards, tokens = 7, 12, 40  # N_draft = N + N_discarded - N_target
    spent = 0.5 * (tokens + discards - forwards) + 3.0 * forwards
    assert latency(0.5, 3.0, RulePoint("", discards / tokens, forwards / tokens)) == pytest.approx(
        spent / tokens
    )


def test_pareto_front() -> None:
    points = [
        RulePoint("a", 0.5, 0.3),
        RulePoint("b", 0.1, 0.6),
        RulePoint("c", 0.6, 0.3),
        RulePoint("d", 0.3, 0.7),
        RulePoint("e", 0.1, 0.5),
    ]
    front = pareto_front(points)
    assert [point.method for point in front] == ["e", "a"]
    assert pareto_front([]) == []
    assert verification_at(front, 0.3) == pytest.approx(0.4)
    assert verification_at(front, 0.1) == 0.5
    assert verification_at(front, 0.05) is None
    assert discard_at(front, 0.4) == pytest.approx(0.3)
    assert discard_at(front, 0.2) is None
    assert cheapest(points, 1.0, 1.5) == points[4]
    assert cheapest(points, 1.0, 9.0) == points[0]
    assert cheapest([], 1.0, 9.0) is None


def test_fronts_are_compared_where_they_overlap() -> None:
    head_points = [RulePoint("h", 0.1, 0.5), RulePoint("h", 0.5, 0.3)]
    rival_points = [
        RulePoint("k", 0.05, 0.8),
        RulePoint("k", 0.3, 0.5),
        RulePoint("k", 0.4, 0.34),
        RulePoint("k", 0.9, 0.2),
    ]
    comparison = against("fixed", "all", rival_points, head_points)
    assert (comparison.points, comparison.within, comparison.below, comparison.above) == (
        4,
        2,
        1,
        1,
    )
    assert comparison.forwards == pytest.approx((0.4 / 0.5 + 0.35 / 0.34) / 2)
    assert comparison.discards == pytest.approx((0.1 / 0.3 + 0.42 / 0.4) / 2)
    nothing = against("fixed", "all", [], head_points)
    assert (nothing.points, nothing.forwards, nothing.gain) == (0, None, None)


def test_rows_of_table_1_have_the_right_order() -> None:
    gains = {pick.name: pick.gain(pick.head) for pick in paper_settings.TABLE_1}
    assert gains == pytest.approx({"Alpaca": 1.072, "HumanEval": 1.111, "GSM8K": 1.094}, abs=1e-3)
