"""Test when `auto` runs its draft model, with fixed token gains and draft times."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from paceline import LLM, DraftTree, SamplingParams, demo
from paceline.core.delegating_drafter import DelegatingDrafter
from paceline.core.drafter import Outcome
from paceline.core.request import Request
from paceline.core.tree import EMPTY_TREE
from paceline.draft_budget.retry_pause import RetryPause
from paceline.drafters.auto.draft_model_gate import DraftModelGate, DraftModelGates
from tests.support.shared import COUNT, Pair


def count_drafted_steps(gate: DraftModelGate, steps: int, gain: int, seconds: float) -> int:
    """Count the steps, of `steps`, in which the gate runs the draft model.

    Each draft adds `gain` tokens to the other sources' drafts and takes `seconds`.
    """
    count = 0
    for _ in range(steps):
        is_open = gate.is_open(1)
        gate.record_step(1 + gain if is_open else 1, 1.0 + (seconds if is_open else 0.0))
        if is_open:
            gate.record_cost(seconds)
            gate.record_gain(gain)
        count += is_open
    return count


@pytest.mark.parametrize(
    ("gain", "seconds", "is_worthwhile"),
    [(1, 0.5, True), (1, 1.5, False), (0, 0.1, False), (3, 2.0, True)],
)
def test_gate_opens_where_drafts_are_faster(gain: int, seconds: float, is_worthwhile: bool) -> None:
    gate = DraftModelGate()
    early, late = (
        count_drafted_steps(gate, 100, gain, seconds),
        count_drafted_steps(gate, 1000, gain, seconds),
    )
    if is_worthwhile:
        assert early > 80
        assert late == 1000
    else:
        assert 3 <= early <= 60
        assert 3 <= late <= 0.02 * 1000


@pytest.mark.parametrize(("gain", "seconds"), [(1, 8.0), (0, 2.0), (3, 40.0)])
def test_trials_of_a_slow_draft_model_are_rare(gain: int, seconds: float) -> None:
    """Check trials against plain steps that take a second and return a token."""
    gate = DraftModelGate()
    trials = count_drafted_steps(gate, 1000, gain, seconds) + count_drafted_steps(
        gate, 1000, gain, seconds
    )
    tokens = 2000 + trials * gain
    assert trials >= 1
    assert (2000 + trials * seconds) / tokens < 1.03


def test_new_batch_size_starts_from_the_nearest_measurements() -> None:
    gates = DraftModelGates()
    gates._by_number[1] = gate = DraftModelGate()
    count_drafted_steps(gate, 50, 0, 8.0)
    assert not gates.begin({1: EMPTY_TREE, 2: EMPTY_TREE}, is_timed=True)
    assert gates._by_number[2] is not gate


def test_prefill_step_is_no_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    gates = DraftModelGates()
    gates._by_number[1] = gate = DraftModelGate()
    count_drafted_steps(gate, 50, 0, 0.5)
    monkeypatch.setattr(RetryPause, "waits", lambda self: False)
    assert not gates.begin({1: EMPTY_TREE}, is_timed=False)
    assert gates.begin({1: EMPTY_TREE}, is_timed=True)


def test_few_unlucky_trials_do_not_close_the_gate() -> None:
    gate = DraftModelGate()
    for gain in (0, -1, -1, 0, 2, 3, 0, -1):
        assert count_drafted_steps(gate, 1, gain, 0.1) == 1


def test_gains_of_a_batch_add_up() -> None:
    gate = DraftModelGate()
    count_drafted_steps(gate, 40, 0, 0.9)
    assert not gate.is_open(1)
    assert gate.is_open(4)


@pytest.mark.parametrize("is_worthwhile", [True, False])
def test_gate_follows_a_changed_gain(is_worthwhile: bool) -> None:
    gate = DraftModelGate()
    count_drafted_steps(gate, 500, 0 if is_worthwhile else 2, 0.5)
    count_drafted_steps(gate, 2500, 2 if is_worthwhile else 0, 0.5)
    assert (count_drafted_steps(gate, 100, 2 if is_worthwhile else 0, 0.5) > 50) is is_worthwhile


@pytest.mark.parametrize(
    ("others", "gain"),
    [
        (DraftTree([5, 6, 8], [-1, 0, 1], None, [0.9] * 3), 0),
        (
            DraftTree([5, 8, 6], [-1, 0, 0], None, [0.9, 0.5, 0.4]),
            1,
        ),  # two of these three nodes would have been fed
        (DraftTree([8, 6], [-1, 0], None, [0.9] * 2), 2),
        (DraftTree([5, 6, 7], [-1, 0, 1], None, [0.9] * 3), 0),
        (EMPTY_TREE, 2),
    ],
)
def test_gain_compares_with_the_other_sources_tree(others: DraftTree, gain: int) -> None:
    """Check the gain of a fed tree whose two drafts were both accepted."""
    assert recorded_gains(others, DraftTree([5, 6], [-1, 0], None, [0.9] * 2), [5, 6, 7], []) == [
        gain
    ]


def test_displacing_a_better_tree_is_a_negative_gain() -> None:
    others, fed = (
        DraftTree.chain([5, 6, 7], confidence=[0.9] * 3),
        DraftTree.chain([8, 9, 9], confidence=[0.9] * 3),
    )
    # the text may still continue as in the other sources' tree
    assert recorded_gains(others, fed, [5], [6, 7]) == []
    assert recorded_gains(others, fed, [5], [6, 9]) == [-2]
    assert recorded_gains(others, fed, [5], [6, 7, 1]) == [-3]
    assert recorded_gains(others, fed, [5], [6], ended=True) == [-1]


def recorded_gains(
    others: DraftTree, fed: DraftTree, emitted: list[int], later: list[int], ended: bool = False
) -> list[int]:
    """Return the gains recorded for a step that emitted `emitted`, once `later` is decoded."""
    noted: list[int] = []
    prices: list[float] = []
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(DraftModelGate, "record_gain", lambda self, gain: noted.append(gain))
        monkeypatch.setattr(
            DraftModelGate, "record_cost", lambda self, seconds: prices.append(seconds)
        )
        request, gates = Request([1], SamplingParams()), DraftModelGates()
        assert gates.begin({request.id: others}, is_timed=True)
        gates.model_finished()
        request.append(emitted)
        gates.end([Outcome(request, fed, [], emitted, [])])
        for token in later:
            gates.begin({request.id: EMPTY_TREE}, is_timed=True)
            request.append([token])
            gates.end([Outcome(request, EMPTY_TREE, [], [token], [])])
        if ended:
            gates.stop(request)
    (seconds,) = prices
    assert seconds > 0
    return noted


class SlowDraftModel(DelegatingDrafter):
    """Fake draft model that takes 30 seconds by its own clock; other steps take 0.1 seconds."""

    now = 0.0

    def propose(self, requests: Sequence[Request], max_nodes: list[int]) -> list[DraftTree]:
        self.now += 30.0 if any(max_nodes) else 0.1
        return super().propose(requests, max_nodes)


def test_slow_draft_model_is_skipped_only_with_a_budget(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    shares = {}
    for budget in ("true", "false"):
        llm = LLM(
            pair.target, f"auto:budget={budget},max_nodes=8", draft_model=pair.draft, max_batch=1
        )
        auto: Any = llm.drafter
        auto._model.inner = slow = SlowDraftModel(auto._model.inner)
        monkeypatch.setattr(
            "paceline.drafters.auto.draft_model_gate.perf_counter", lambda slow=slow: slow.now
        )
        outs = llm.generate(pair.prompts * 2, SamplingParams(max_new_tokens=COUNT))
        assert [out.token_ids for out in outs] == pair.answers * 2
        shares[budget] = sum(out.stats.draft_forwards for out in outs) / sum(
            out.stats.target_forwards for out in outs
        )
    assert shares["true"] < 0.6 * shares["false"]


def test_merged_tree_beats_each_source_alone() -> None:
    """Compare tokens per forward pass of the embedded pair, with 16 nodes each."""
    found = {}
    for spec, draft in (("auto", None), ("auto", demo.DRAFT), ("draft_model", demo.DRAFT)):
        options = ":budget=false,max_nodes=16" if spec == "auto" else ""
        llm = LLM(demo.TARGET, spec + options, draft_model=draft, max_batch=1, max_nodes=16)
        texts = (
            "Write a Python function that reverses a list.",
            "Count to ten.",
            "Name three rivers.",
            "Explain rain.",
            "What is a verb?",
            "List colours.",
            "Write a poem about snow.",
            "How do I boil an egg?",
        )
        prompts = [llm.chat_prompt([{"role": "user", "content": text}]) for text in texts]
        outs = llm.generate(prompts, SamplingParams(max_new_tokens=40))
        found[spec, draft] = sum(out.stats.new_tokens for out in outs) / sum(
            out.stats.target_forwards for out in outs
        )
    assert found["auto", demo.DRAFT] > max(found["auto", None], found["draft_model", demo.DRAFT])
