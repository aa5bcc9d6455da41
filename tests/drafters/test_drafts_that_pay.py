"""Test the draft budget of drafters with a draft model.

Trees are cut to the nodes worth feeding, slow drafters are skipped, and answers stay the same.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from paceline import Drafter, DraftTree, Outcome
from paceline.core.delegating_drafter import DelegatingDrafter
from paceline.core.request import Request
from paceline.core.sampling_params import SamplingParams
from paceline.core.tree import EMPTY_TREE
from paceline.draft_budget.budget import DraftBudget
from paceline.draft_budget.cost_curve import CostCurve
from paceline.draft_budget.drafter_stats import DrafterStats
from paceline.draft_budget.drafts import DrafterBatch, DrafterState, Drafts
from paceline.drafters.shared.trees import likeliest_first, outcome_of
from paceline.engine.engine import Engine
from tests.support.shared import COUNT, Pair

CURVES = {
    # so slow that the draft's own time does not count
    "free": CostCurve((1, 1000), (100.0, 100.1)),
    "knee": CostCurve((1, 3, 4, 64), (100.0, 105.0, 200.0, 400.0)),
    "dear": CostCurve((1, 1000), (100.0, 1e5)),
}
SPECS = [
    "draft_model",
    "draft_model:branch_threshold=0.02",
    "specdec_pp:min_draft_tokens=1",
    "ouroboros",
    "ouroboros:inspiration=paper,gamma=8",
]


class RecordingDrafter(DelegatingDrafter):
    """Drafter wrapper that records each tree, its fed part and whether a prompt was fed too."""

    def __init__(self, inner: Drafter) -> None:
        super().__init__(inner)
        self.notes: list[tuple[DraftTree, DraftTree, bool]] = []
        self.trees: list[DraftTree] = []

    def propose(self, requests: Sequence[Request], max_nodes: list[int]) -> list[DraftTree]:
        self.trees = super().propose(requests, max_nodes)
        return self.trees

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        for tree, outcome in zip(self.trees, outcomes, strict=True):
            prompt = len(outcome.request.output_ids) == len(outcome.new_token_ids)
            self.notes.append((tree, outcome.tree, prompt))
        super().observe(outcomes)


def decode_with_curve(
    pair: Pair, spec: str, curve: str, params: SamplingParams, batch: int
) -> tuple[list[list[int]], RecordingDrafter]:
    drafter = RecordingDrafter(
        pair.engine(f"{spec}{',' if ':' in spec else ':'}budget=true").drafter
    )
    engine = Engine(pair.target, drafter, max_batch=batch, cost_curve=CURVES[curve])
    requests = [Request(prompt, params) for prompt in pair.prompts[:6]]
    engine.finish(engine.submit(requests))
    return [request.output_ids for request in requests], drafter


@pytest.mark.parametrize(("curve", "batch"), [("free", 3), ("knee", 1), ("dear", 3)])
@pytest.mark.parametrize("spec", SPECS)
def test_trees_are_cut_from_the_end_and_answers_stay(
    pair: Pair, spec: str, batch: int, curve: str
) -> None:
    answers, recorder = decode_with_curve(pair, spec, curve, SamplingParams(COUNT), batch)
    assert answers == pair.answers[:6]
    for tree, fed, _ in recorder.notes:
        assert fed == tree.first(len(fed))
        assert tree.confidence is not None or not tree.token_ids
    assert any(tree.token_ids for tree, _, _ in recorder.notes)
    if curve == "dear":
        assert not any(fed.token_ids for _, fed, _ in recorder.notes)
    if curve == "knee":
        assert all(
            prompt or len(fed) != 3 for _, fed, prompt in recorder.notes
        )  # the third node costs as much as forty


@pytest.mark.parametrize("spec", ["draft_model", "specdec_pp"])
def test_sampled_drafts_ignore_the_cost_curve(pair: Pair, spec: str) -> None:
    """Check that sampled drafts are fed whole at every step, whatever they cost.

    A seed's text depends on the draws, so it would otherwise depend on timings.
    """
    params = SamplingParams(30, temperature=1.0, seed=5)
    texts = [decode_with_curve(pair, spec, curve, params, 3)[0] for curve in ("free", "dear")]
    assert texts[0] == texts[1]


def test_cutting_sampled_drafts_changes_the_text(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that the test above notices a drafter that does not report its draws."""
    monkeypatch.setattr(RecordingDrafter, "draws", lambda self, request: False)
    params = SamplingParams(30, temperature=1.0, seed=5)
    texts = [
        decode_with_curve(pair, "draft_model", curve, params, 3)[0] for curve in ("free", "dear")
    ]
    assert texts[0] != texts[1]


def test_slow_draft_model_is_mostly_skipped(pair: Pair) -> None:
    """Check that a draft model whose time is spent before a tree can be cut runs only rarely."""

    class SlowDrafter(DelegatingDrafter):
        spent = 0.0

        def propose(self, requests: Sequence[Request], max_nodes: list[int]) -> list[DraftTree]:
            if any(max_nodes):
                self.spent += 1000.0
            return super().propose(requests, max_nodes)

        @property
        def forward_seconds(self) -> float:
            return self.spent

    drafter = SlowDrafter(pair.engine("draft_model:budget=true").drafter)
    engine = Engine(pair.target, drafter, cost_curve=CURVES["free"])
    requests = [Request(prompt, SamplingParams(COUNT)) for prompt in pair.prompts]
    for request in requests:
        engine.finish(engine.submit([request]))
    assert [request.output_ids for request in requests] == pair.answers
    assert drafter.spent < 1000.0 * 0.12 * COUNT * len(
        requests
    )  # bursts of 8 steps, with growing pauses


def test_draft_time_is_a_cost_even_if_nothing_is_fed() -> None:
    """Check costs where a step without trees takes 100 seconds."""

    class NeedsDraftModel(Drafter):
        needs_draft_model = True

    for tree, seconds, cost in (
        (EMPTY_TREE, 0.0, 0.0),
        (EMPTY_TREE, 50.0, 1.5),
        (DraftTree.chain([5], confidence=[0.0]), 50.0, 1.5),
        (DraftTree.chain([5, 6]), 50.0, 1.03 * 1.05 + 0.5),
    ):
        batch = DrafterBatch(DrafterState(NeedsDraftModel(), DrafterStats()), [], [])
        drafts = Drafts(batch, [], [tree], seconds)
        (cut,) = DraftBudget(lambda: CURVES["knee"]).cut([drafts], 1, 1)
        assert cut.cost == pytest.approx(cost)


def test_likeliest_paths_first() -> None:
    """Check that 0.5 -> 0.9 -> 0.5 and 0.4 -> 0.8 become 0.5, 0.45, 0.4, 0.32, 0.225."""
    tree = DraftTree(
        [10, 11, 12, 20, 21],
        [-1, 0, 1, -1, 3],
        confidence=[0.5, 0.9, 0.5, 0.4, 0.8],
        origins=[1, 1, 1, 2, 2],
    )
    ordered, before = likeliest_first(tree)
    assert before == [0, 1, 3, 4, 2]
    assert ordered == DraftTree(
        [10, 11, 20, 21, 12], [-1, 0, -1, 2, 1], confidence=[0.5, 0.9, 0.4, 0.8, 0.5]
    )
    assert ordered.origins == [1, 1, 2, 2, 1]
    assert likeliest_first(ordered)[0] is ordered


@pytest.mark.parametrize("seed", range(20))
def test_any_tree_keeps_its_paths(seed: int) -> None:
    chance = random.Random(seed)
    size = chance.randrange(1, 30)
    parents = [chance.randrange(-1, node) for node in range(size)]
    tree = DraftTree(
        list(range(size)),
        parents,
        confidence=[chance.choice([0.0, 0.3, 1.0, chance.random()]) for _ in parents],
    )
    ordered, before = likeliest_first(tree)
    assert sorted(before) == tree.token_ids
    assert all(parent < node for node, parent in enumerate(ordered.parents))
    for node, old in enumerate(before):
        assert [ordered.token_ids[one] for one in ordered.path(node)] == tree.path(old)


def test_accepted_nodes_of_a_cut_tree() -> None:
    tree = DraftTree([1, 2, 3, 4], [-1, 0, -1, 1])
    outcome = Outcome(Request([9], SamplingParams()), tree.first(1), [0], [1, 2, 7], [1, 2])
    assert outcome_of(tree, outcome).accepted == [0, 1]
    assert outcome_of(outcome.tree, outcome) is outcome
