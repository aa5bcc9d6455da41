"""Test the fitted draft head: its predictions, and that answers stay the same."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from paceline import LLM, SamplingParams, drafters
from paceline.core.drafter import Outcome, TopTokens
from paceline.core.request import Request
from paceline.core.sampling_params import SamplingParams as Params
from paceline.core.tree import EMPTY_TREE, DraftTree
from paceline.draft_head import fitting as module
from paceline.draft_head.find import find_draft_head
from paceline.draft_head.settings import FitSettings
from paceline.drafters.auto.draft_model_gate import DraftModelGate
from paceline.drafters.auto.drafter import Auto
from paceline.drafters.auto.options import AutoOptions
from paceline.model.cached_lm import CachedLM
from paceline.util import cache
from tests.support.models import make
from tests.support.shared import COUNT, Pair

VOCABULARY = 256  # of the pair


def states_of(model: CachedLM, token_ids: list[int]) -> Tensor:
    """Return the states [n, hidden] after each of some tokens."""
    inner = model.model.base_model
    with torch.inference_mode():
        found: Tensor = inner(input_ids=torch.tensor([token_ids])).last_hidden_state[0]
    return found


def test_states_are_the_lm_heads_input(pair: Pair) -> None:
    model = CachedLM(pair.target)
    requests = [Request(prompt, Params()) for prompt in pair.prompts[:2]]
    for request in requests:
        model.open(request)
    trees = [DraftTree([5, 9, 7], [-1, -1, 0]), EMPTY_TREE]
    found = model.forward_with_states(requests, trees)
    assert found.states is not None
    head = pair.target.get_output_embeddings()
    with torch.no_grad():
        assert torch.allclose(head(found.states[:, 0]), found.flat, atol=1e-3)
    expected = states_of(model, [*pair.prompts[0], 5, 7])
    first = found.states[found.starts[0] : found.starts[0] + 4, 0]
    assert torch.allclose(first[[0, 1, 3]], expected[-3:], atol=1e-3)
    second = found.select([1]).states
    assert second is not None
    assert torch.equal(second, found.states[found.starts[1] :][:1])


def in_one_portion(result: Any) -> Generator[None, None, Any]:
    yield
    return result


def test_linear_model_is_predicted_exactly(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Check that a linear map from state and embedding to the next state is recovered."""
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path))  # other tests have cached their fits
    model = CachedLM(pair.target)
    embedding, head = (
        pair.target.get_input_embeddings().weight,
        pair.target.get_output_embeddings().weight,
    )
    hidden = head.shape[1]
    generator = torch.Generator().manual_seed(1)
    states = torch.randn(3000, hidden, generator=generator)
    token_ids = torch.randint(0, len(embedding), (3000,), generator=generator)
    true = torch.randn(2 * hidden + 1, hidden, generator=generator)
    with torch.inference_mode():
        inputs = torch.cat((states, embedding[token_ids], torch.ones(3000, 1)), dim=-1)
        following = inputs @ true
        pairs = module._Pairs(states[:2900], token_ids[:2900], following[:2900])
        monkeypatch.setattr(module, "_generate", lambda *_: in_one_portion(pairs))
        monkeypatch.setattr(module, "_SETTINGS", FitSettings(ridge=1e-3))
        found = find_draft_head(model)
        assert found is not None
        trees = found.predict(states[2900:], token_ids[2900:].tolist())
        expected = (following[2900:] @ head.T).softmax(-1).topk(4)
    firsts = torch.tensor([tree.token_ids[0] for tree in trees])
    assert (firsts == expected.indices[:, 0]).float().mean() > 0.97
    assert all(tree.parents == [-1] * 16 for tree in trees)


@pytest.mark.parametrize("count", [5, 40])
def test_both_forms_of_the_system_are_equivalent(count: int) -> None:
    generator = torch.Generator().manual_seed(2)
    inputs, following = (
        torch.randn(count, width, generator=generator, dtype=torch.float64) for width in (20, 3)
    )
    expected = torch.linalg.solve(
        inputs.T @ inputs + module._SETTINGS.ridge * torch.eye(20), inputs.T @ following
    )
    torch.testing.assert_close(module._solve(inputs, following), expected)


def test_head_guesses_better_than_chance(pair: Pair) -> None:
    """Check the target's own answers: next tokens are often among the first sixteen."""
    model = CachedLM(pair.target)
    found = find_draft_head(model)
    assert found is not None
    right = total = 0
    for prompt, answer in zip(pair.prompts[:4], pair.answers[:4], strict=True):
        text = [*prompt, *answer]
        trees = found.predict(states_of(model, text)[:-2], text[1:-1])
        hits = [token in tree.token_ids for tree, token in zip(trees, text[2:], strict=True)][
            len(prompt) :
        ]
        right, total = right + sum(hits), total + len(hits)
    assert right > 0.2 * total


@pytest.mark.parametrize("name", ["falcon_alibi", "opt", "gemma2", "gpt2"])
def test_head_is_fitted_on_other_architectures(name: str) -> None:
    """Check slots as positions, position embeddings, and scaled, capped or projected layers."""
    found = find_draft_head(CachedLM(make(name, "eager")))
    assert found is not None


def test_no_head_without_plain_embeddings(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pair.target, "get_input_embeddings", torch.nn.Identity)
    assert find_draft_head(CachedLM(pair.target)) is None


def test_no_head_if_the_lm_head_does_not_give_the_logits(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Check also that a request continues without the draft head."""
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path))
    head = pair.target.get_output_embeddings()
    monkeypatch.setattr(
        pair.target,
        "get_output_embeddings",
        lambda: torch.nn.Linear(head.in_features, head.out_features),
    )
    assert find_draft_head(CachedLM(pair.target)) is None
    (answer,) = LLM(pair.target, drafters.create("auto:max_nodes=8,budget=false")).generate(
        pair.prompts[:1], SamplingParams(max_new_tokens=COUNT)
    )
    assert answer.token_ids == pair.answers[0][:COUNT]


def test_no_head_for_a_model_too_slow_to_fit(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path))
    monkeypatch.setattr(module, "_SETTINGS", FitSettings(max_seconds=0.0))
    assert find_draft_head(CachedLM(pair.target)) is None


class WrongHeadDrafts(Auto):
    """Drafter that records the head's drafts and passes on wrong ones."""

    head_draft: list[DraftTree]

    def observe(self, outcomes: list[Outcome]) -> None:  # type: ignore[override]
        self.head_draft = [
            *getattr(self, "head_draft", []),
            *(one.head_draft for one in outcomes if one.head_draft is not None),
        ]
        super().observe(
            [
                replace(
                    one, head_draft=None if one.head_draft is None else wrong_draft(one.head_draft)
                )
                for one in outcomes
            ]
        )


def wrong_draft(tree: DraftTree) -> DraftTree:
    """Return other tokens, with the highest confidence for the least likely."""
    assert tree.confidence is not None
    return replace(
        tree,
        token_ids=[VOCABULARY - 1 - token for token in tree.token_ids],
        confidence=tree.confidence[::-1],
    )


def test_wrong_head_drafts_change_no_answer(pair: Pair) -> None:
    drafter = WrongHeadDrafts(AutoOptions(max_nodes=8, budget=False))
    answers = LLM(pair.target, drafter).generate(
        pair.prompts[:3], SamplingParams(max_new_tokens=COUNT)
    )
    assert [answer.token_ids for answer in answers] == [
        expected[:COUNT] for expected in pair.answers[:3]
    ]
    assert drafter.head_draft
    assert all(len(tree) == 16 for tree in drafter.head_draft)


def test_predictions_start_from_the_last_accepted_token(pair: Pair) -> None:
    """Compare each step's head draft with one from the newest token's state."""

    class RecordingAuto(Auto):
        seen: ClassVar[list[tuple[list[int], list[int]]]] = []

        def observe(self, outcomes: list[Outcome]) -> None:  # type: ignore[override]
            for one in outcomes:
                assert one.head_draft is not None
                self.seen.append((one.request.token_ids[:], one.head_draft.token_ids))
            super().observe(outcomes)

    drafter = RecordingAuto(AutoOptions(max_nodes=8, budget=False))
    LLM(pair.target, drafter).generate(pair.prompts[:3], SamplingParams(max_new_tokens=16))
    model = CachedLM(pair.target)
    found = find_draft_head(model)
    assert found is not None
    agree = 0
    for text, head_draft in drafter.seen:
        (tree,) = found.predict(states_of(model, text[:-1])[-1:], text[-1:])
        agree += tree.token_ids[0] == head_draft[0]
    assert agree >= len(drafter.seen) - 1  # two tokens may be equally likely


def test_auto_drafts_from_the_first_step(pair: Pair) -> None:
    """Check tokens that are not in the prompt, with and without the draft head."""
    drafted = []
    for spec in ("auto:max_nodes=8,budget=false", "auto:max_nodes=8,budget=false,draft_head=false"):
        (answer,) = LLM(pair.target, drafters.create(spec)).generate(
            [[5, 9, 13]], SamplingParams(max_new_tokens=3)
        )
        drafted.append(answer.stats.drafted_tokens)
    assert drafted[0] > drafted[1]


def test_auto_skips_the_head_while_nothing_is_fed() -> None:
    drafter = Auto(AutoOptions())
    requests = [Request([1, 2, 3], Params()) for _ in range(4)]
    uses_head = []
    for _ in range(40):
        uses_head.append(drafter.num_head_tokens() > 0)
        for request in requests:
            request.token_ids.append(7)
        tops = TopTokens(torch.full((1, 8), 7).numpy(), torch.full((1, 8), 0.1).numpy())
        drafter.observe([Outcome(request, EMPTY_TREE, [], [7], [7], tops) for request in requests])
    assert uses_head[0]
    assert sum(uses_head) == 3


@pytest.mark.parametrize("is_open", [False, True])
def test_auto_drafts_less_with_a_draft_model(
    is_open: bool, pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check one or two tokens if the draft model runs, and all if it does not."""
    monkeypatch.setattr(DraftModelGate, "is_open", lambda *_, may_try: is_open)
    drafter = Auto(AutoOptions(), CachedLM(pair.draft))
    request = Request(pair.prompts[0], Params())
    drafter.start(request)
    levels = [drafter.num_head_tokens()]
    for nodes in (8, 16):
        drafter.propose([request], [nodes])
        request.token_ids.append(7)
        tops = TopTokens(
            torch.full((1 + nodes, 8), 7).numpy(), torch.full((1 + nodes, 8), 0.1).numpy()
        )
        drafter.observe(
            [Outcome(request, DraftTree.chain([9] * nodes), [], [7], [7] * (1 + nodes), tops)]
        )
        levels.append(drafter.num_head_tokens())
    assert levels == ([16, 1, 2] if is_open else [16, 16, 16])
