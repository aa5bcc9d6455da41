"""Whether a draft model is asked, by tokens and seconds that are given here."""

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


def asked(asking: DraftModelGate, steps: int, gain: int, seconds: float) -> int:
    """How many of so many steps ask, if that adds so many tokens to one of the others and a
    second.
    """
    count = 0
    for _ in range(steps):
        asks = asking.is_open(1)
        asking.record_step(1 + gain if asks else 1, 1.0 + (seconds if asks else 0.0))
        if asks:
            asking.record_cost(seconds)
            asking.record_gain(gain)
        count += asks
    return count


@pytest.mark.parametrize(
    ("gain", "seconds", "pays"), [(1, 0.5, True), (1, 1.5, False), (0, 0.1, False), (3, 2.0, True)]
)
def test_it_is_asked_where_that_pays_and_ever_more_rarely_where_not(
    gain: int, seconds: float, pays: bool
) -> None:
    asking = DraftModelGate()
    early, late = asked(asking, 100, gain, seconds), asked(asking, 1000, gain, seconds)
    if pays:
        assert early > 80
        assert late == 1000
    else:
        assert 3 <= early <= 60
        assert 3 <= late <= 0.02 * 1000


@pytest.mark.parametrize(("gain", "seconds"), [(1, 8.0), (0, 2.0), (3, 40.0)])
def test_trials_of_a_slow_draft_model_take_little_time(gain: int, seconds: float) -> None:
    """Plain steps take a second and return a token."""
    asking = DraftModelGate()
    trials = asked(asking, 1000, gain, seconds) + asked(asking, 1000, gain, seconds)
    tokens = 2000 + trials * gain
    assert trials >= 1
    assert (2000 + trials * seconds) / tokens < 1.03


def test_another_number_of_requests_starts_with_the_nearest_measurements() -> None:
    gates = DraftModelGates()
    gates._by_number[1] = gate = DraftModelGate()
    asked(gate, 50, 0, 8.0)
    assert not gates.begin({1: EMPTY_TREE, 2: EMPTY_TREE}, is_timed=True)
    assert gates._by_number[2] is not gate


def test_a_step_with_prompts_is_no_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    gates = DraftModelGates()
    gates._by_number[1] = gate = DraftModelGate()
    asked(gate, 50, 0, 0.5)
    monkeypatch.setattr(RetryPause, "waits", lambda self: False)
    assert not gates.begin({1: EMPTY_TREE}, is_timed=False)
    assert gates.begin({1: EMPTY_TREE}, is_timed=True)


def test_a_few_unlucky_trials_do_not_decide() -> None:
    asking = DraftModelGate()
    for gain in (0, -1, -1, 0, 2, 3, 0, -1):
        assert asked(asking, 1, gain, 0.1) == 1


def test_what_several_sequences_win_together_pays_for_one_asking() -> None:
    asking = DraftModelGate()
    asked(asking, 40, 0, 0.9)
    assert not asking.is_open(1)
    assert asking.is_open(4)


@pytest.mark.parametrize("pays", [True, False])
def test_a_source_that_begins_or_ceases_to_pay_is_noticed(pays: bool) -> None:
    asking = DraftModelGate()
    asked(asking, 500, 0 if pays else 2, 0.5)
    asked(asking, 2500, 2 if pays else 0, 0.5)
    assert (asked(asking, 100, 2 if pays else 0, 0.5) > 50) is pays


@pytest.mark.parametrize(
    ("others", "gain"),
    [
        (DraftTree([5, 6, 8], [-1, 0, 1], None, [0.9] * 3), 0),
        (
            DraftTree([5, 8, 6], [-1, 0, 0], None, [0.9, 0.5, 0.4]),
            1,
        ),  # of three, two would have been fed
        (DraftTree([8, 6], [-1, 0], None, [0.9] * 2), 2),
        (DraftTree([5, 6, 7], [-1, 0, 1], None, [0.9] * 3), 0),
        (EMPTY_TREE, 2),
    ],
)
def test_the_others_tree_counts_as_far_as_it_would_have_been_fed(
    others: DraftTree, gain: int
) -> None:
    """Two drafts were fed and accepted."""
    assert gains(others, DraftTree([5, 6], [-1, 0], None, [0.9] * 2), [5, 6, 7], []) == [gain]


def test_a_tree_that_displaced_a_better_one_has_cost_what_the_text_says_later() -> None:
    others, fed = (
        DraftTree.chain([5, 6, 7], confidence=[0.9] * 3),
        DraftTree.chain([8, 9, 9], confidence=[0.9] * 3),
    )
    assert gains(others, fed, [5], [6, 7]) == []  # the text may go on as the others' tree does
    assert gains(others, fed, [5], [6, 9]) == [-2]
    assert gains(others, fed, [5], [6, 7, 1]) == [-3]
    assert gains(others, fed, [5], [6], ended=True) == [-1]


def gains(
    others: DraftTree, fed: DraftTree, said: list[int], later: list[int], ended: bool = False
) -> list[int]:
    """What asking was worth in a step that had the tokens `said`, as far as `later` tells."""
    noted: list[int] = []
    prices: list[float] = []
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(DraftModelGate, "record_gain", lambda self, gain: noted.append(gain))
        monkeypatch.setattr(
            DraftModelGate, "record_cost", lambda self, seconds: prices.append(seconds)
        )
        request, askings = Request([1], SamplingParams()), DraftModelGates()
        assert askings.begin({request.id: others}, is_timed=True)
        askings.model_finished()
        request.append(said)
        askings.end([Outcome(request, fed, [], said, [])])
        for token in later:
            askings.begin({request.id: EMPTY_TREE}, is_timed=True)
            request.append([token])
            askings.end([Outcome(request, EMPTY_TREE, [], [token], [])])
        if ended:
            askings.stop(request)
    (seconds,) = prices
    assert seconds > 0
    return noted


class Slow(DelegatingDrafter):
    """Its proposals take 30 seconds of a clock by which all else of a step takes a tenth."""

    now = 0.0

    def propose(self, requests: Sequence[Request], max_nodes: list[int]) -> list[DraftTree]:
        self.now += 30.0 if any(max_nodes) else 0.1
        return super().propose(requests, max_nodes)


def test_a_draft_model_that_takes_long_is_left_out_with_the_budget_only(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    shares = {}
    for budget in ("true", "false"):
        llm = LLM(
            pair.target, f"auto:budget={budget},max_nodes=8", draft_model=pair.draft, max_batch=1
        )
        auto: Any = llm.drafter
        auto._model.inner = slow = Slow(auto._model.inner)
        monkeypatch.setattr(
            "paceline.drafters.auto.draft_model_gate.perf_counter", lambda slow=slow: slow.now
        )
        outs = llm.generate(pair.prompts * 3, SamplingParams(max_new_tokens=COUNT))
        assert [out.token_ids for out in outs] == pair.answers * 3
        shares[budget] = sum(out.stats.draft_forwards for out in outs) / sum(
            out.stats.target_forwards for out in outs
        )
    assert shares["true"] < 0.6 * shares["false"]


def test_one_tree_of_all_sources_has_more_tokens_per_forward_than_each() -> None:
    """The embedded pair, 16 nodes each."""
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
        outs = llm.generate(prompts, SamplingParams(max_new_tokens=64))
        found[spec, draft] = sum(out.stats.new_tokens for out in outs) / sum(
            out.stats.target_forwards for out in outs
        )
    assert found["auto", demo.DRAFT] > max(found["auto", None], found["draft_model", demo.DRAFT])
