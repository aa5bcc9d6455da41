"""When drafting is left out, and when it comes back."""

from __future__ import annotations

import pytest

from paceline import DraftTree, Outcome, SamplingParams
from paceline.core.drafter import Drafter
from paceline.core.request import Request
from paceline.draft_budget.budgeted_drafts import BudgetedDrafts
from paceline.draft_budget.drafter_stats import DrafterStats
from paceline.draft_budget.drafting_backoff import DraftingBackoff
from paceline.draft_budget.drafts import DrafterBatch, DrafterState, Drafts
from paceline.draft_budget.settings import DraftBudgetSettings


def test_cheap_drafts_outlast_a_dry_spell_and_dear_ones_do_not() -> None:
    def steps_in_vain(cost: float) -> int:
        gate = DraftingBackoff()
        for step in range(100):
            if not gate.opens():
                return step
            gate.note(1.0, cost)
        return 100

    assert steps_in_vain(1.5) == steps_in_vain(1.1) == 8
    assert steps_in_vain(1.05) == 11
    assert 20 <= steps_in_vain(1.03) <= 30
    assert steps_in_vain(1.01) == 100  # less than anyone could measure


def test_the_gate_shuts_ever_longer_and_opens_where_drafting_pays() -> None:
    def pauses(tokens: float, steps: int) -> list[int]:
        gate, found = DraftingBackoff(), [0]
        for _ in range(steps):
            if gate.opens():
                gate.note(tokens, 1.5)
                found.append(0)
            else:
                found[-1] += 1
        return [length for length in found if length]

    assert pauses(2.0, 500) == []
    assert pauses(1.0, 4000)[:5] == [32, 64, 128, 256, 512]
    assert set(pauses(1.0, 4000)[4:-1]) == {512}


def test_a_few_sequences_try_it_until_it_pays() -> None:
    gate = DraftingBackoff()
    assert gate.most == 4
    for _ in range(8):
        gate.note(2.0, 1.5)
    assert gate.most is None
    while gate.opens():  # with all of them it does not
        gate.note(1.0, 1.5, num_requests=32)
    assert gate.most == 4
    pauses = [0]
    for _ in range(400):  # and never does, whatever the few say
        if gate.opens():
            gate.note(*((2.0, 1.5, 4) if gate.most else (1.0, 1.5, 32)))
            pauses.append(0)
        else:
            pauses[-1] += 1
    assert [pause for pause in pauses if pause][:3] == [31, 64, 128]
    cut = DraftingBackoff()
    cut.note_cut(0)  # what is cut to what pays needs no trial
    assert cut.most is None


def test_one_step_of_a_large_batch_is_enough_where_drafts_are_hopeless() -> None:
    gate = DraftingBackoff()
    gate.note(1.1, 3.0, num_requests=32)
    assert [gate.opens() for _ in range(129)] == [False] * 128 + [True]
    few = DraftingBackoff()
    few.note(1.03, 2.2, num_requests=4)
    assert not few.opens()
    other = DraftingBackoff()
    other.note(1.1, 1.5, num_requests=32)
    assert other.opens()
    other.note(1.1, 1.5, num_requests=32)
    assert [other.opens() for _ in range(33)] == [False] * 32 + [True]


def test_a_drafter_whose_trees_are_cut_to_nothing_rests_and_is_back_at_once() -> None:
    gate = DraftingBackoff(DraftBudgetSettings(max_rest_steps=4))
    asked = []
    for _ in range(60):
        asked.append(gate.opens())
        if asked[-1]:
            gate.note_cut(0)
    assert asked[:9] == [True] * 5 + [False, True, False, False]
    assert sum(asked[30:]) == 6
    while not gate.opens():
        pass
    gate.note_cut(3)
    for _ in range(4):
        assert gate.opens()
        gate.note_cut(0)


def test_rests_become_longer_step_by_step() -> None:
    gate, rests = DraftingBackoff(), [0]
    for _ in range(1000):
        if gate.opens():
            gate.note_cut(0)
            rests.append(0)
        else:
            rests[-1] += 1
            assert gate.is_dormant == (rests[-1] + 4 <= min(len(rests) - 5, 32))
    assert rests[1:45] == [0] * 4 + [*range(1, 33)] + [32] * 8


def test_drafts_that_bring_few_sequences_far_are_judged_by_all_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The batch goes on as long as the slowest of them."""
    noted: list[float] = []
    monkeypatch.setattr(
        DraftingBackoff, "note", lambda self, tokens, cost, sequences: noted.append(tokens)
    )
    request, chain = Request([1], SamplingParams()), DraftTree.chain([5] * 8)
    for lengths in ([9] + [1] * 7, [3] * 8):
        state = DrafterState(Drafter(), DrafterStats())
        batch = DrafterBatch(state, [request] * 8, [8] * 8)
        drafts = BudgetedDrafts(Drafts(batch, [request] * 8, [chain] * 8))
        drafts.cost = 2.0
        outcomes = [Outcome(request, chain, [], [5] * length, [5] * length) for length in lengths]
        drafts.learn(outcomes, sum(lengths))
    assert noted == [pytest.approx(8 / (7 + 1 / 9)), pytest.approx(3.0)]


def test_a_batch_shows_sooner_whether_drafting_pays() -> None:
    gate = DraftingBackoff()
    steps = 0
    while gate.opens():
        gate.note(1.0, 1.5, num_requests=8)
        steps += 1
    assert steps == 2
