"""Whether a draft model is asked, by tokens and seconds that are given here."""

from __future__ import annotations

from collections.abc import Sequence as ListLike
from typing import Any

import pytest

from paceline import LLM, DraftTree, SamplingParams, demo
from paceline.drafters.auto.weighing import _LONGEST, Weighing
from paceline.engine.drafter import DelegatingDrafter
from paceline.engine.sequence import Sequence
from tests.support.shared import COUNT, Pair


def asked(weighing: Weighing, steps: int, tokens: float, seconds: float) -> list[bool]:
    """What it says for so many steps, those without the source being of 1 token and 1 second."""
    said = []
    for _ in range(steps):
        said.append(weighing.asks)
        weighing.note(*((round(100 * tokens), seconds) if weighing.asks else (100, 1.0)))
    return said


@pytest.mark.parametrize(
    ("tokens", "seconds", "pays"), [(2.0, 1.5, True), (2.0, 2.5, False), (1.0, 1.2, False), (1.1, 1.0, True)]
)
def test_what_pays_is_done_and_the_other_way_tried_ever_more_rarely(tokens: float, seconds: float, pays: bool) -> None:
    weighing = Weighing()
    assert asked(weighing, 20, tokens, seconds) == [True] * 9 + [False] * 9 + [pays] * 2
    early, late = (sum(said is not pays for said in asked(weighing, 1000, tokens, seconds)) for _ in range(2))
    assert 0 < late < early < 0.06 * 1000


@pytest.mark.parametrize("pays", [True, False])
def test_a_source_that_begins_or_ceases_to_pay_is_noticed(pays: bool) -> None:
    weighing = Weighing()
    asked(weighing, 1500, 2.0 if not pays else 1.0, 1.3)
    said = asked(weighing, 2 * _LONGEST, 2.0 if pays else 1.0, 1.3)
    assert said[-1] is pays


class Slow(DelegatingDrafter):
    """Its proposals take 30 seconds of a clock by which all else of a step takes a tenth."""

    now = 0.0

    def propose(self, seqs: ListLike[Sequence], max_nodes: list[int]) -> list[DraftTree]:
        self.now += 30.0 if any(max_nodes) else 0.1
        return super().propose(seqs, max_nodes)


def test_a_draft_model_that_takes_long_is_left_out_with_the_budget_only(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    shares = {}
    for budget in ("true", "false"):
        llm = LLM(pair.target, f"auto:budget={budget},nodes=8", draft_model=pair.draft, max_batch=1)
        auto: Any = llm.drafter
        auto._model = slow = Slow(auto._model)
        monkeypatch.setattr("paceline.drafters.auto.weighing.perf_counter", lambda slow=slow: slow.now)
        outs = llm.generate(pair.prompts * 3, SamplingParams(max_new_tokens=COUNT))
        assert [out.token_ids for out in outs] == pair.answers * 3
        shares[budget] = sum(out.stats.draft_forwards for out in outs) / sum(out.stats.target_forwards for out in outs)
    assert shares["true"] < 0.6 * shares["false"]


def test_one_tree_of_all_sources_has_more_tokens_per_forward_than_each() -> None:
    """The embedded pair, 16 nodes each."""
    found = {}
    for spec, draft in (("auto", None), ("auto", demo.DRAFT), ("draft_model", demo.DRAFT)):
        options = ":budget=false,nodes=16" if spec == "auto" else ""
        llm = LLM(demo.TARGET, spec + options, draft_model=draft, max_batch=1, max_nodes=16)
        texts = ("Write a Python function that reverses a list.", "Count to ten.", "Name three rivers.")
        prompts = [llm.chat_prompt([{"role": "user", "content": text}]) for text in texts]
        outs = llm.generate(prompts, SamplingParams(max_new_tokens=32))
        found[spec, draft] = sum(out.stats.new_tokens for out in outs) / sum(out.stats.target_forwards for out in outs)
    assert found["auto", demo.DRAFT] > max(found["auto", None], found["draft_model", demo.DRAFT])
