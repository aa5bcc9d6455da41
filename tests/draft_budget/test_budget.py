"""Test which nodes the draft budget feeds, compared with every other choice."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from paceline import LLM, DraftTree, Outcome, SamplingParams
from paceline.core.drafter import Drafter
from paceline.core.request import Request
from paceline.core.tree import EMPTY_TREE
from paceline.draft_budget.acceptance_calibration import AcceptanceCalibration
from paceline.draft_budget.budget import DraftBudget
from paceline.draft_budget.budgeted_drafts import BudgetedDrafts
from paceline.draft_budget.cost_curve import CostCurve
from paceline.draft_budget.drafter_stats import DrafterStats
from paceline.draft_budget.drafts import DrafterBatch, DrafterState, Drafts
from paceline.draft_budget.settings import DraftBudgetSettings
from paceline.drafters import create
from tests.support.shared import Pair

CHEAP = CostCurve((1, 1000), (1.0, 1.001))
DEAR = CostCurve((1, 1000), (1.0, 1000.0))
KNEE = CostCurve((1, 8, 16), (1.0, 1.2, 3.0))


class SingleDrafterBudget:
    """Draft budget of one drafter that serves all requests."""

    def __init__(self, curve: CostCurve, ragged: bool = False) -> None:
        self._ragged = ragged
        self._drafting, self._spending = (
            DrafterState(Drafter(), DrafterStats()),
            DraftBudget(lambda: curve),
        )
        self._cut: list[BudgetedDrafts] = []

    @property
    def acceptance_calibration(self) -> AcceptanceCalibration:
        assert self._drafting.stats is not None
        return self._drafting.stats.acceptance_calibration

    @property
    def plain_seconds(self) -> float | None:
        return self._spending.plain_seconds

    def cut(
        self, trees: list[DraftTree], sequences: int, pending: int, cached: int = 0
    ) -> list[DraftTree]:
        request = Request([1] * (cached + 1), SamplingParams())
        request.cached = cached
        drafts = Drafts(DrafterBatch(self._drafting, [request], []), [], trees)
        self._cut = self._spending.cut([drafts], sequences, sequences * pending, self._ragged)
        return list(self._cut[0].trees)

    def observe(self, outcomes: list[Outcome], seconds: float) -> None:
        self._spending.observe(self._cut, [outcomes], 0.0, seconds)


def random_tree(chance: random.Random, nodes: int) -> DraftTree:
    """Return a tree whose nodes are sorted by falling path probability."""
    frontier = [(chance.random(), -1, token) for token in range(3)]
    taken: list[tuple[float, int, int, float]] = []
    while len(taken) < nodes:
        best = max(frontier)
        frontier.remove(best)
        path, parent, token = best
        taken.append((path, parent, token, path / (taken[parent][0] if parent >= 0 else 1.0)))
        frontier += [(path * chance.random(), len(taken) - 1, token) for token in range(3)]
    return DraftTree(
        [token for _, _, token, _ in taken],
        [parent for _, parent, _, _ in taken],
        None,
        [c for *_, c in taken],
    )


def expected_tokens(tree: DraftTree, width: int) -> float:
    paths: list[float] = []
    for parent, confidence in zip(
        tree.parents[:width], (tree.confidence or [])[:width], strict=True
    ):
        paths.append(confidence * (paths[parent] if parent >= 0 else 1.0))
    return 1 + sum(paths)


@pytest.mark.parametrize("curve", [CHEAP, DEAR, KNEE, CostCurve((1, 64), (1.0, 4.0))])
@pytest.mark.parametrize("seed", range(6))
def test_padded_width_has_the_most_tokens_per_second(curve: CostCurve, seed: int) -> None:
    chance = random.Random(seed)
    trees = [random_tree(chance, chance.randrange(20)) for _ in range(chance.randrange(1, 5))]
    pending = chance.choice([1, 1, 30])
    cut = SingleDrafterBudget(curve).cut(trees, len(trees), pending)

    def speed(width: int) -> float:
        """Return tokens per second next to a plain step; a prompt has its own cost."""
        fed = min(width, max(map(len, trees)))
        plain, prompt, both = curve.of(len(trees) * np.array([1, pending, pending + fed]))
        return float(sum(expected_tokens(tree, width) for tree in trees) / (plain + both - prompt))

    width = max(map(len, cut))
    assert speed(width) == pytest.approx(max(map(speed, range(21))), rel=1e-9)
    for tree, short in zip(trees, cut, strict=True):
        assert (short.token_ids, short.parents) == (tree.token_ids[:width], tree.parents[:width])


@pytest.mark.parametrize("curve", [CHEAP, DEAR, KNEE, CostCurve((1, 64), (1.0, 4.0))])
@pytest.mark.parametrize("seed", range(6))
def test_packed_nodes_have_the_most_tokens_per_second(curve: CostCurve, seed: int) -> None:
    chance = random.Random(seed)
    trees = [random_tree(chance, chance.randrange(20)) for _ in range(chance.randrange(1, 5))]
    count, pending = len(trees), chance.choice([1, 1, 30])
    cut = SingleDrafterBudget(curve, ragged=True).cut(trees, count, pending)

    def speed(widths: list[int]) -> float:
        plain, prompt, both = curve.of(
            np.array([count, count * pending, count * pending + sum(widths)])
        )
        margin = 1.03 if sum(widths) else 1.0
        return sum(map(expected_tokens, trees, widths)) / (margin * float(plain + both - prompt))

    kept = [len(tree) for tree in cut]
    for tree, short in zip(trees, cut, strict=True):
        assert short == tree.first(len(short))
    paths = sorted((path for tree in trees for path in tree.path_chances()), reverse=True)
    left = [
        path
        for tree, width in zip(trees, kept, strict=True)
        for path in tree.path_chances()[width:]
    ]
    # no better node was left out
    assert max(left, default=0.0) <= min(paths[: sum(kept)], default=1.0)
    for total in range(sum(map(len, trees)) + 1):
        best = [
            sum(path > paths[total] for path in tree.path_chances())
            if total < len(paths)
            else len(tree)
            for tree in trees
        ]
        assert speed(kept) >= speed(best) * (1 - 1e-9)


def test_packed_batch_feeds_only_the_confident_chain() -> None:
    """Check that one confident chain is worth three rows, but not four for padded requests."""
    sure, unlikely = (
        DraftTree.chain([5, 6, 7], confidence=[0.95] * 3),
        DraftTree.chain([5, 6, 7], confidence=[0.1] * 3),
    )
    curve = CostCurve((1, 4, 100), (1.0, 1.0, 10.0))
    cut = SingleDrafterBudget(curve, ragged=True).cut([unlikely, sure, unlikely, unlikely], 4, 1)
    assert [len(tree) for tree in cut] == [0, 3, 0, 0]
    assert not any(
        map(len, SingleDrafterBudget(curve).cut([unlikely, sure, unlikely, unlikely], 4, 1))
    )


def test_packed_whole_trees_have_their_own_cost() -> None:
    """Check that a tree without confidence pays for its rows and leaves other costs alone."""
    likely = DraftTree.chain([5] * 3, confidence=[0.9] * 3)
    own, whole = (
        Drafts(DrafterBatch(DrafterState(Drafter(), DrafterStats()), [], []), [], trees)
        for trees in ([likely], [DraftTree.chain([1] * 4)])
    )
    linear = CostCurve((1, 101), (10.0, 60.0))
    cut = DraftBudget(lambda: linear).cut([own, whole], 2, 2, ragged=True)
    assert [len(drafts.trees[0]) for drafts in cut] == [3, 4]
    assert cut[1].cost == pytest.approx((1.03 * (10.5 + 3.5)) / (1.03 * (10.5 + 1.5)))


def test_cheap_rows_feed_all_and_costly_rows_nothing() -> None:
    tree = random_tree(random.Random(1), 12)
    assert SingleDrafterBudget(CHEAP).cut([tree], 1, 1) == [tree]
    assert len(SingleDrafterBudget(DEAR).cut([tree], 1, 1)[0]) == 0


def test_overconfident_drafter_is_corrected() -> None:
    """Check that nodes that were not fed count too: the next token shows if the first was right."""
    draft_budget = SingleDrafterBudget(KNEE)
    overconfident = DraftTree([5], [-1], None, [0.9])
    lengths = []
    for _ in range(300):
        (cut,) = draft_budget.cut([overconfident], 1, 15)
        lengths.append(len(cut))
        request = Request([1], SamplingParams(max_new_tokens=9))
        draft_budget.observe([Outcome(request, cut, [], [6], [6])], 1.0)
    assert lengths[0] == 1
    assert lengths[-1] == 0
    tried = draft_budget.acceptance_calibration.trials.sum()
    assert tried == 300
    assert draft_budget.acceptance_calibration.hits.sum() == 0
    back = 0
    while len(draft_budget.cut([overconfident], 1, 15)[0]) == 0:  # now it becomes predictable
        draft_budget.observe(
            [Outcome(Request([1], SamplingParams()), DraftTree([], []), [], [5], [5])], 1.0
        )
        back += 1
    assert back < 300


def test_slower_steps_correct_the_cost_curve() -> None:
    """Check drafts that double the step time, unlike the curve: they are mostly skipped."""
    draft_budget, tree = SingleDrafterBudget(CHEAP), DraftTree([5], [-1], None, [0.6])
    request = Request([1], SamplingParams())
    widths = []
    for _ in range(4000):
        (cut,) = draft_budget.cut([tree], 1, 1)
        widths.append(len(cut))
        token = 5 if len(widths) % 5 < 3 else 6
        draft_budget.observe(
            [Outcome(request, cut, [], [token], [token])], 2.0 if len(cut) else 1.0
        )
    assert widths[:2] == [1, 1]  # the cost of steps without drafts is unknown so far
    draft_budget.cut([DraftTree([], [])], 1, 1)
    draft_budget.observe([Outcome(request, DraftTree([], []), [], [5], [5])], 1.0)
    later = []
    for _ in range(2000):
        (cut,) = draft_budget.cut([tree], 1, 1)
        later.append(len(cut))
        draft_budget.observe(
            [Outcome(request, cut, [], [5 if len(later) % 5 < 3 else 6], [5])],
            2.0 if len(cut) else 1.0,
        )
    assert 0 < sum(later) < 200


def test_the_first_step_does_not_correct_the_cost_curve() -> None:
    """Check a first step that takes longer than later ones, because of work done only once."""
    draft_budget, request = SingleDrafterBudget(CHEAP), Request([1], SamplingParams())
    for seconds in (9.0, 2.0):
        draft_budget.cut([DraftTree([5], [-1], None, [0.0])], 1, 1)
        draft_budget.observe([Outcome(request, EMPTY_TREE, [], [5], [5])], seconds)
    assert draft_budget.plain_seconds == pytest.approx(2.0)


def test_slow_plain_steps_do_not_make_drafts_free() -> None:
    """Check that unlikely nodes still have a cost in a large batch.

    Steps with many nodes took what the curve predicts; steps without took longer.
    """
    draft_budget, request = (
        SingleDrafterBudget(CostCurve((1, 101), (1.0, 11.0)), ragged=True),
        Request([1], SamplingParams()),
    )
    many = DraftTree.chain([5] * 10, confidence=[0.99] * 10)
    for turn in range(20):
        cut = draft_budget.cut([many if turn % 2 else EMPTY_TREE] * 8, 8, 1)
        emitted = [5] * 11 if turn % 2 else [5]
        draft_budget.observe(
            [Outcome(request, one, [], emitted, emitted) for one in cut], 10.0 if turn % 2 else 3.0
        )
    assert not any(map(len, draft_budget.cut([DraftTree([6], [-1], None, [0.03])] * 8, 8, 1)))
    assert all(map(len, draft_budget.cut([many] * 8, 8, 1)))


def test_prompt_rows_do_not_make_drafts_cheap() -> None:
    """Check that a draft row costs the same next to one row and next to 500."""
    for pending in (1, 500):
        assert not len(
            SingleDrafterBudget(DEAR).cut([DraftTree([5], [-1], None, [0.6])], 1, pending)[0]
        )
        assert len(
            SingleDrafterBudget(CHEAP).cut([DraftTree([5], [-1], None, [0.6])], 1, pending)[0]
        )


def test_trees_without_confidence_are_not_cut() -> None:
    chain = DraftTree.chain([1, 2, 3])
    assert SingleDrafterBudget(DEAR).cut([chain], 1, 1) == [chain]


def test_costs_carry_over_to_other_batch_sizes() -> None:
    draft_budget, tree = SingleDrafterBudget(CHEAP), DraftTree([5], [-1], None, [0.6])
    request = Request([1], SamplingParams())
    for turn in range(60):
        trees = [tree] * 4 if turn % 2 else [EMPTY_TREE] * 4
        cut = draft_budget.cut(trees, 4, 1)
        draft_budget.observe(
            [Outcome(request, one, [], [5], [5]) for one in cut], 3.0 if any(map(len, cut)) else 1.0
        )
    assert not any(map(len, draft_budget.cut([tree] * 3, 3, 1)))
    assert all(map(len, SingleDrafterBudget(CHEAP).cut([tree] * 3, 3, 1)))


def test_gain_below_the_margin_is_not_drafted() -> None:
    small = CostCurve((1, 2), (1.0, 1.39))
    assert not len(SingleDrafterBudget(small).cut([DraftTree([5], [-1], None, [0.4])], 1, 1)[0])
    assert len(
        SingleDrafterBudget(CostCurve((1, 2), (1.0, 1.3))).cut(
            [DraftTree([5], [-1], None, [0.4])], 1, 1
        )[0]
    )


def test_rows_cost_more_after_a_long_text() -> None:
    curve = CostCurve((1, 65), (1.0, 1.0), (0.0, 0.064))
    assert curve.of(np.array([1, 65]), 32).tolist() == [1.0, 1.0]
    assert curve.of(np.array([1, 65, 129]), 1032).tolist() == pytest.approx([1.0, 65.0, 129.0])
    tree = DraftTree([1, 2, 3], [-1, 0, 1], None, [0.9, 0.9, 0.9])
    fed = [
        len(SingleDrafterBudget(curve, ragged=True).cut([tree], 1, 1, cached)[0])
        for cached in (0, 200, 4000)
    ]
    assert fed == [3, 3, 0]
    assert SingleDrafterBudget(curve).cut([tree], 1, 1, 4000) == SingleDrafterBudget(
        curve, ragged=True
    ).cut([tree], 1, 1, 4000)


class Overconfident(Drafter):
    """Drafter that always proposes the same token with high confidence."""

    budget = True

    def propose(self, requests: Any, max_nodes: list[int]) -> list[DraftTree]:
        return [
            DraftTree([3], [-1], None, [0.95]) if limit else DraftTree([], [])
            for limit in max_nodes
        ]


def test_engine_calibrates_its_drafter(pair: Pair) -> None:
    llm = LLM(pair.target, Overconfident(), draft_budget=DraftBudgetSettings(max_rest_steps=4))
    for _ in range(8):
        outs = llm.generate(pair.prompts, SamplingParams(max_new_tokens=40))
        assert [out.token_ids for out in outs] == pair.answers
    known = llm.acceptance_calibration
    assert known is not None
    assert known.trials.sum() > 800
    assert known.hits.sum() / known.trials.sum() < 0.2


@pytest.mark.parametrize("spec", ["sssd", "prompt_lookup", "auto", "token_recycling", "lookahead"])
def test_the_budget_can_be_switched_off(pair: Pair, spec: str) -> None:
    assert LLM(pair.target, create(spec)).acceptance_calibration is not None
    assert LLM(pair.target, create(f"{spec}:budget=false")).acceptance_calibration is None


def test_each_drafter_keeps_its_calibration(pair: Pair) -> None:
    first, second = create("sssd"), create("prompt_lookup")
    llm = LLM(pair.target, first)
    known = llm.acceptance_calibration
    llm.change_drafter(second)
    assert llm.acceptance_calibration is not known
    llm.change_drafter(first)
    assert llm.acceptance_calibration is known
