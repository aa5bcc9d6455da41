"""Test the draft budget of steps with requests of several drafters."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from paceline import Drafter, DraftTree, Outcome, SamplingParams
from paceline.core.request import Request
from paceline.draft_budget.budget import DraftBudget
from paceline.draft_budget.cost_curve import CostCurve
from paceline.draft_budget.drafter_stats import DrafterStats
from paceline.draft_budget.drafts import DrafterBatch, DrafterState, Drafts
from paceline.drafters import create
from paceline.engine.engine import Engine
from tests.support.shared import COUNT, Pair


def drafts_of(trees: list[DraftTree], stats: DrafterStats | None) -> Drafts:
    return Drafts(DrafterBatch(DrafterState(Drafter(), stats), [], []), [], trees)


def test_confidence_is_calibrated_per_drafter() -> None:
    """Check equal trees of two drafters: only the overconfident one is cut to zero nodes."""
    honest, overconfident, chain = (
        DrafterStats(),
        DrafterStats(),
        DraftTree.chain([5, 6], confidence=[0.9, 0.9]),
    )
    draft_budget = DraftBudget(lambda: CostCurve((1, 1000), (1.0, 1.001)))
    for _ in range(200):
        cut = draft_budget.cut(
            [drafts_of([chain], honest), drafts_of([chain], overconfident)], 2, 2
        )
        outcomes = [
            [Outcome(Request([1], SamplingParams()), drafts.trees[0], [], tokens, [])]
            for drafts, tokens in zip(cut, ([5, 6, 7], [9]), strict=True)
        ]
        draft_budget.observe(cut, outcomes, 0.0, 1.0)
    assert honest.acceptance_calibration.hits.sum() == 400
    assert overconfident.acceptance_calibration.hits.sum() == 0
    steep = DraftBudget(lambda: CostCurve((1, 100), (1.0, 30.0)))
    (kept,) = steep.cut([drafts_of([chain], honest)], 1, 1)
    (dropped,) = steep.cut([drafts_of([chain], overconfident)], 1, 1)
    assert [len(kept.trees[0]), len(dropped.trees[0])] == [2, 0]


def test_nodes_within_the_padded_width_are_free() -> None:
    unlikely = DraftTree.chain([5] * 6, confidence=[0.3] * 6)
    for whole in (
        drafts_of([DraftTree.chain([1] * 4)], None),
        drafts_of([DraftTree.chain([1] * 4)], DrafterStats()),
    ):
        own = drafts_of([unlikely], DrafterStats())
        cut = DraftBudget(lambda: CostCurve((1, 100), (1.0, 100.0))).cut([own, whole], 2, 2)
        assert [len(drafts.trees[0]) for drafts in cut] == [4, 4]


def test_whole_trees_cost_what_they_add_in_width() -> None:
    linear = CostCurve((1, 101), (1.0, 101.0))
    narrow, wide, plain = (
        drafts_of([DraftTree.chain([1] * length)], DrafterStats()) for length in (3, 7, 0)
    )
    without_budget = drafts_of([DraftTree.chain([1] * 2)], None)
    cut = DraftBudget(lambda: linear).cut([wide, plain, narrow, without_budget], 1, 1)
    assert [drafts.cost for drafts in cut] == pytest.approx([8 / 4, 0, 4 / 3, 0])
    notes: list[tuple[float, float, int]] = []
    assert wide.state.stats is not None
    wide.state.stats.gate.note = lambda *seen: notes.append(seen)  # type: ignore[method-assign]
    outcome = Outcome(Request([1], SamplingParams()), cut[0].trees[0], [], [4, 4], [])
    cut[0].learn([outcome], 2 + 1 + 1 + 3)
    assert notes == [(7 / 6, 2.0, 1)]  # seven tokens instead of six, in twice the time


def test_only_the_useless_drafter_is_paused(pair: Pair) -> None:
    """Check a drafter whose wide trees are never right next to one that helps."""

    class Useless(Drafter):
        budget = True

        def propose(self, requests: Sequence[Request], max_nodes: list[int]) -> list[DraftTree]:
            return [DraftTree.chain([0] * min(40, limit)) for limit in max_nodes]

    def create_drafter(spec: str) -> Drafter:
        return Useless() if spec == "useless" else create(spec)

    engine = Engine(
        pair.target,
        create("none"),
        make=create_drafter,
        cost_curve=CostCurve((1, 1000), (1.0, 1000.0)),
    )
    requests = [
        Request(
            prompt,
            SamplingParams(COUNT, speculation="useless" if row % 2 else "lookahead:budget=false"),
        )
        for row, prompt in enumerate(pair.prompts[:8])
    ]
    engine.finish(engine.submit(requests))
    assert [request.output_ids for request in requests] == pair.answers[:8]
    useless = [request for request in requests if request.params.speculation == "useless"]
    assert sum(
        fed > 30 for request in useless for fed in request.counters.query_tokens[1:]
    ) <= 4 * len(useless)
    assert all(
        sum(request.counters.query_tokens) > 2 * len(request.counters.query_tokens)
        for request in requests
        if request not in useless
    )
