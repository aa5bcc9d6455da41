"""Test the scripted drafter and the public contract check."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from paceline import LLM, Drafter, DraftTree, SamplingParams, ScriptedDrafter
from paceline.core.request import Request
from paceline.drafters import create
from paceline.drafters.contract import check_drafter
from paceline.drafters.prompt_lookup import PromptLookup
from paceline.drafters.shared.file_options import PromptLookupOptions
from paceline.errors import ConfigError, DrafterError
from tests.support.shared import Pair


def test_scripts_advance_per_sequence(pair: Pair) -> None:
    drafter = ScriptedDrafter([[3, 4, 5], DraftTree([6, 7], [-1, -1])])
    llm = LLM(pair.target, drafter, max_nodes=2)
    outs = llm.generate(pair.prompts[1:3], SamplingParams(max_new_tokens=6))
    assert [out.token_ids for out in outs] == [answer[:6] for answer in pair.answers[1:3]]
    for request in {question.sequence for question in drafter.questions}:
        trees = [outcome.tree for outcome in drafter.outcomes if outcome.request.id == request]
        assert trees[0] == DraftTree([3, 4], [-1, 0])  # cut to the budget
        assert trees[1] == DraftTree([6, 7], [-1, -1])
        assert not any(tree.token_ids for tree in trees[2:])
    assert drafter.questions[0].token_ids == pair.prompts[1]
    assert drafter.questions[0].max_nodes == 2
    assert not drafter.open


def test_function_scripts_are_not_cut(pair: Pair) -> None:
    def script(requests: Sequence[Request], max_nodes: list[int]) -> list[DraftTree]:
        return [
            DraftTree.chain(pair.answers[1][len(request.output_ids) :][:limit])
            for request, limit in zip(requests, max_nodes, strict=True)
        ]

    (out,) = LLM(pair.target, ScriptedDrafter(script), max_nodes=3).generate(
        [pair.prompts[1]], SamplingParams(max_new_tokens=12)
    )
    assert out.token_ids == pair.answers[1][:12]
    assert out.stats.tokens_per_forward > 3
    with pytest.raises(DrafterError, match="drafter 'wordy' proposed 3 nodes"):
        LLM(
            pair.target,
            ScriptedDrafter(lambda *_: [DraftTree.chain([1, 2, 3])], "wordy"),
            max_nodes=2,
        ).generate([pair.prompts[1]])


def test_contract_check_reports_drafts_and_steps(pair: Pair) -> None:
    report = check_drafter(create("prompt_lookup"), pair.target, pair.prompts)
    assert report.drafted > report.accepted > 0
    assert report.steps > 40
    assert not report.draws
    assert check_drafter(
        create("draft_model", draft_model=pair.draft), pair.target, pair.prompts
    ).draws
    report = check_drafter(create("pia"))  # with the embedded model
    assert report.accepted > 0


class ChangesTokens(ScriptedDrafter):
    def propose(self, requests: Sequence[Request], max_nodes: list[int]) -> list[DraftTree]:
        requests[0].token_ids[-1] = 5
        return super().propose(requests, max_nodes)


class KeepsStopped(ScriptedDrafter):
    def stop(self, request: Request) -> None:
        self.open.add(request.id)


class RewritesAnswer(ScriptedDrafter):
    """Drafter that changes an answer after it was emitted."""

    def observe(self, outcomes: Any) -> None:
        for outcome in outcomes:
            outcome.request.token_ids[-1] = 7


class InheritsPromise(PromptLookup):
    """Drafter that changes an answer although its base class promises not to."""

    def observe(self, outcomes: Any) -> None:
        outcomes[0].request.token_ids[0] = 7


class ChangesTemperature(ScriptedDrafter):
    """Drafter that changes the sampling parameters."""

    def start(self, request: Request) -> None:
        super().start(request)
        request.params = SamplingParams(request.params.max_new_tokens, temperature=9.0)


BROKEN: dict[str, tuple[Drafter, str]] = {
    "beyond the budget": (
        ScriptedDrafter(lambda requests, _: [DraftTree.chain([1, 2, 3])] * len(requests)),
        "proposed 3 nodes",
    ),
    "another's tokens": (ChangesTokens([]), "drafter 'scripted': got changed token_ids of request"),
    "state kept": (
        KeepsStopped([]),
        "the drafter 'scripted' still holds stopped requests in open, _steps",
    ),
    "an answer rewritten": (RewritesAnswer([]), "got changed token_ids of request"),
    "a promise inherited": (
        InheritsPromise(PromptLookupOptions()),
        "got changed token_ids of request",
    ),
    "another answer": (
        ChangesTemperature([]),
        "changed answer .*: token .* differs from plain decoding",
    ),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_contract_check_finds_breaches(pair: Pair, fault: str) -> None:
    drafter, words = BROKEN[fault]
    with pytest.raises(DrafterError, match=words):
        check_drafter(drafter, pair.target, pair.prompts)


def test_contract_check_refuses_unfit_input(pair: Pair) -> None:
    with pytest.raises(ConfigError, match="got 2 prompts; expected at least 4"):
        check_drafter(create("none"), pair.target, pair.prompts[:2])
    half: Any = type(pair.target)(pair.target.config).to(torch.bfloat16)
    with pytest.raises(ConfigError, match=r"got a target in torch\.bfloat16; expected float32"):
        check_drafter(create("none"), half, pair.prompts)
