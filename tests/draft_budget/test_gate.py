"""Test when drafting is paused and when it resumes."""

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


def test_costly_drafts_are_paused_sooner_than_cheap_ones() -> None:
    def steps_until_pause(cost: float) -> int:
        gate = DraftingBackoff()
        for step in range(100):
            if not gate.opens():
                return step
            gate.note(1.0, cost)
        return 100

    assert steps_until_pause(1.5) == steps_until_pause(1.1) == 8
    assert steps_until_pause(1.05) == 11
    assert 20 <= steps_until_pause(1.03) <= 30
    assert steps_until_pause(1.01) == 100  # less than is measurable


def test_pauses_grow_where_drafting_is_slower() -> None:
    def pause_lengths(tokens: float, steps: int) -> list[int]:
        gate, found = DraftingBackoff(), [0]
        for _ in range(steps):
            if gate.opens():
                gate.note(tokens, 1.5)
                found.append(0)
            else:
                found[-1] += 1
        return [length for length in found if length]

    assert pause_lengths(2.0, 500) == []
    assert pause_lengths(1.0, 4000)[:5] == [32, 64, 128, 256, 512]
    assert set(pause_lengths(1.0, 4000)[4:-1]) == {512}


def test_few_requests_try_drafting_first() -> None:
    gate = DraftingBackoff()
    assert gate.most == 4
    for _ in range(8):
        gate.note(2.0, 1.5)
    assert gate.most is None
    while gate.opens():  # for the whole batch it is not faster
        gate.note(1.0, 1.5, num_requests=32)
    assert gate.most == 4
    pause_lengths = [0]
    for _ in range(400):  # and it never is, whatever the few requests gain
        if gate.opens():
            gate.note(*((2.0, 1.5, 4) if gate.most else (1.0, 1.5, 32)))
            pause_lengths.append(0)
        else:
            pause_lengths[-1] += 1
    assert [pause for pause in pause_lengths if pause][:3] == [31, 64, 128]
    cut = DraftingBackoff()
    cut.note_cut(0)  # trees cut by the budget need no trial
    assert cut.most is None


def test_large_batch_pauses_after_one_slow_step() -> None:
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


def test_drafter_cut_to_zero_nodes_rests_and_resumes() -> None:
    gate = DraftingBackoff(DraftBudgetSettings(max_rest_steps=4))
    opened = []
    for _ in range(60):
        opened.append(gate.opens())
        if opened[-1]:
            gate.note_cut(0)
    assert opened[:9] == [True] * 5 + [False, True, False, False]
    assert sum(opened[30:]) == 6
    while not gate.opens():
        pass
    gate.note_cut(3)
    for _ in range(4):
        assert gate.opens()
        gate.note_cut(0)


def test_rests_grow_by_one_step() -> None:
    gate, rests = DraftingBackoff(), [0]
    for _ in range(1000):
        if gate.opens():
            gate.note_cut(0)
            rests.append(0)
        else:
            rests[-1] += 1
            assert gate.is_dormant == (rests[-1] + 4 <= min(len(rests) - 5, 32))
    assert rests[1:45] == [0] * 4 + [*range(1, 33)] + [32] * 8


def test_gain_is_the_harmonic_mean_over_the_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Check the gain of few long runs: the slowest request determines when a batch ends."""
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


def test_larger_batches_decide_sooner() -> None:
    gate = DraftingBackoff()
    steps = 0
    while gate.opens():
        gate.note(1.0, 1.5, num_requests=8)
        steps += 1
    assert steps == 2
