"""Test the draft budget's settings and the decisions it records."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest

from paceline import LLM, DraftBudgetSettings, DraftTree, SamplingParams
from paceline.core.drafter import Drafter
from paceline.core.request import Request
from paceline.core.tree import EMPTY_TREE
from paceline.draft_budget import decisions
from paceline.draft_budget.budget import DraftBudget
from paceline.draft_budget.cost_curve import CostCurve
from paceline.draft_budget.drafter_stats import DrafterStats
from paceline.draft_budget.drafts import DrafterBatch, DrafterState, Drafts
from paceline.errors import ConfigError
from tests.draft_budget.test_budget import CHEAP, KNEE
from tests.support.shared import Pair


def test_settings_reach_the_budget(pair: Pair) -> None:
    """Check settings of calibration, back-off, node selection and prefill chunks."""
    settings = DraftBudgetSettings(
        prior_trials=7, burst_requests=2, gain_margin=1.5, first_chunk_tokens=4
    )
    engine = LLM(pair.target, "sssd", cost_curve=CHEAP, draft_budget=settings)._engine
    stats = engine._drafters.own.stats
    assert stats is not None
    assert stats.acceptance_calibration.prior_trials == 7
    assert stats.gate.most == 2
    assert engine._schedule._chunking is not None
    assert engine._schedule._chunking.chunk == 4
    assert engine.draft_budget is not None
    engine.draft_budget.cut([drafts_of(DraftTree([5], [-1], None, [0.4]))], 1, 1)
    assert engine.draft_budget.decisions == deque()
    strict, usual = (
        DraftBudget(lambda: CostCurve((1, 2), (1.0, 1.3)), settings=choice)
        for choice in (settings, DraftBudgetSettings())
    )
    for draft_budget, width in ((strict, 0), (usual, 1)):
        (drafts,) = draft_budget.cut([drafts_of(DraftTree([5], [-1], None, [0.4]))], 1, 1)
        assert drafts.width == width


def drafts_of(*trees: DraftTree, limit: int = 9) -> Drafts:
    requests = [Request([1], SamplingParams()) for _ in trees]
    state = DrafterState(Drafter(), DrafterStats())
    return Drafts(DrafterBatch(state, requests, [limit] * len(trees)), requests, list(trees))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("prior_trials", 0),
        ("gain_margin", 0.5),
        ("burst_memory", 1.5),
        ("max_pause_steps", 3),
        ("bucket_edges", (0.5, 0.2)),
        ("measured_rows", (2, 4)),
        ("burst_samples", True),
    ],
)
def test_settings_out_of_range_are_refused(name: str, value: Any) -> None:
    settings: dict[str, Any] = {name: value}
    with pytest.raises(ConfigError, match=f"draft_budget: {name}: got"):
        DraftBudgetSettings(**settings)


@pytest.mark.parametrize("ragged", [False, True])
def test_recorded_decisions_give_a_reason_for_every_node(ragged: bool) -> None:
    sure, unlikely = (
        DraftTree.chain([5, 6, 7], confidence=[confidence] * 3) for confidence in (0.95, 0.1)
    )
    curve = CostCurve((1, 4, 100), (1.0, 1.0, 10.0))
    settings = DraftBudgetSettings(recorded_steps=2)
    draft_budget = DraftBudget(lambda: curve, settings=settings)
    chains, chain = drafts_of(sure, unlikely), drafts_of(DraftTree.chain([1]))
    resting = drafts_of(EMPTY_TREE, limit=0)
    for _ in range(3):
        cut, whole, _ = draft_budget.cut([chains, chain, resting], 4, 4, ragged)
    assert len(draft_budget.decisions) == 2
    step = draft_budget.decisions[-1]
    assert step.num_requests == 4
    assert step.num_verified == sum(map(len, [*cut.trees, *whole.trees]))
    ids = [request.id for request in cut.ready]
    for row, tree in enumerate((sure, unlikely)):
        nodes = [node for node in step.nodes if node.request_id == ids[row]]
        assert [node.verified for node in nodes] == [
            node < len(cut.trees[row]) for node in range(3)
        ]
        assert [node.token_id for node in nodes] == tree.token_ids
        assert [node.probability for node in nodes] == pytest.approx(tree.confidence)
        assert [node.path_probability for node in nodes] == pytest.approx(tree.path_chances())
    assert {node.reason for node in step.nodes if not node.verified} == {
        decisions.NOT_ALLOWED,
        decisions.TOO_EXPENSIVE,
    }
    assert {node.reason for node in step.nodes if node.verified} >= {decisions.WHOLE}
    if ragged:
        assert min(node.price_s for node in step.nodes if node.node >= 0) > 0
    else:
        assert step.nodes[0].reason == decisions.PADDING
    assert "left out: more nodes yield fewer tokens per second" in str(step)
    draft_budget.record(0)
    draft_budget.cut([resting], 1, 1)
    assert not draft_budget.decisions


def test_decisions_are_recorded_on_request_only(pair: Pair) -> None:
    settings = DraftBudgetSettings(recorded_steps=1000)
    params = SamplingParams(max_new_tokens=24)
    recording = LLM(pair.target, "sssd", cost_curve=KNEE, draft_budget=settings)
    quiet = LLM(pair.target, "sssd", cost_curve=KNEE)
    prompt = [pair.prompts[0] * 2]
    (first,), (second,) = recording.generate(prompt, params), quiet.generate(prompt, params)
    assert first.token_ids == second.token_ids
    assert quiet.draft_decisions == []
    verified = sum(step.num_verified for step in recording.draft_decisions)
    assert verified == first.stats.drafted_tokens == second.stats.drafted_tokens > 0
