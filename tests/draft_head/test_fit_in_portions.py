"""Test that a draft head can be fitted in portions, between the steps of an engine."""

from __future__ import annotations

import copy
import gc
import weakref
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from paceline import LLM, SamplingParams
from paceline.draft_head import fitting as module
from paceline.draft_head.fitting import finished, fit_in_portions, fitted_weights
from paceline.draft_head.guessing import DraftHead
from paceline.draft_head.settings import FitSettings
from paceline.errors import ConfigError
from paceline.model.cached_lm import CachedLM
from paceline.util import cache
from tests.support.shared import COUNT, Pair
from tests.support.simulated_cuda import moved, simulated_cuda

SPEC = "auto:max_nodes=8,budget=false"
NUM_PORTIONS = 6


@pytest.fixture(autouse=True)
def empty_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Let every test fit its heads, with little text."""
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path))
    settings = FitSettings(num_texts=16, max_pairs=16 * (NUM_PORTIONS - 1), min_pairs=16)
    monkeypatch.setattr(module, "_SETTINGS", settings)


@pytest.fixture
def predictions(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that grows by an entry when a head predicts."""
    calls: list[int] = []
    predict = DraftHead.predict_after

    def counted(self: DraftHead, *arguments: object) -> object:
        calls.append(1)
        return predict(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(DraftHead, "predict_after", counted)
    return calls


def answers(llm: LLM, prompts: list[list[int]], count: int) -> list[list[int]]:
    """Return the answers to prompts, one after the other."""
    params = SamplingParams(max_new_tokens=count, ignore_eos=True)
    return [llm.generate([prompt], params)[0].token_ids for prompt in prompts]


def test_portions_give_the_same_weights(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    expected = fitted_weights(CachedLM(pair.target))
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "other"))
    portions = fit_in_portions(CachedLM(pair.target))
    for _ in range(NUM_PORTIONS):
        next(portions)
    weights = finished(portions)
    assert expected is not None
    assert weights is not None
    assert torch.equal(weights.first, expected.first)
    again = finished(fit_in_portions(CachedLM(pair.target)))
    assert again is not None
    assert torch.equal(again.first, expected.first)
    assert next(fit_in_portions(CachedLM(pair.target)), "no portion") == "no portion"


def test_answers_on_a_gpu_do_not_wait_for_the_fit(pair: Pair, predictions: list[int]) -> None:
    with simulated_cuda():
        target = moved(copy.deepcopy(pair.target))
        llm = LLM(target, SPEC, batch_invariant=False)
        params = SamplingParams(max_new_tokens=COUNT, ignore_eos=True)
        before = [len(predictions) for _ in llm.stream(pair.prompts[0], params)]
        tokens = answers(llm, pair.prompts[:3], COUNT)
    assert before[:2] == [0, 0], "the first steps have no head"
    assert predictions, "the head drafts once it is fitted"
    assert tokens == [answer[:COUNT] for answer in pair.answers[:3]]


def test_drafters_share_the_portions_of_a_fit(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, predictions: list[int]
) -> None:
    advance, portions = module._advance, []

    def counted(*arguments: object) -> object:
        portions.append(1)
        return advance(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "_advance", counted)
    params = SamplingParams(max_new_tokens=2, ignore_eos=True)
    other = replace(params, speculation="auto:max_nodes=4,budget=false")
    with simulated_cuda():
        llm = LLM(moved(copy.deepcopy(pair.target)), SPEC, batch_invariant=False)
        llm.generate(pair.prompts[:2], [params, other])
        steps = llm._engine._runner.steps
    assert not predictions
    assert 0 < len(portions) <= steps


def test_an_engine_with_an_unfinished_fit_frees_its_cache(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, fits = module._opened_texts, []

    def noted(target: CachedLM, *arguments: int) -> object:
        fits.append(weakref.ref(target))
        return opened(target, *arguments)

    monkeypatch.setattr(module, "_opened_texts", noted)
    with simulated_cuda():
        llm = LLM(moved(copy.deepcopy(pair.target)), SPEC, batch_invariant=False)
        answers(llm, pair.prompts[:1], 1)
        assert fits[0]() is not None
        del llm
        gc.collect()
    assert fits[0]() is None


def test_the_fit_can_be_finished_at_once(pair: Pair, predictions: list[int]) -> None:
    with simulated_cuda():
        llm = LLM(moved(copy.deepcopy(pair.target)), SPEC, batch_invariant=False)
        answers(llm, pair.prompts[:1], 1)  # runs a portion
        llm.finish_draft_head()
        assert not predictions
        llm.finish_draft_head()
        answers(llm, pair.prompts[:1], 1)
    assert len(predictions) == 1


@pytest.mark.parametrize("survives", [True, False])
def test_an_engine_that_survives_drafter_errors_starts_without_a_head(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, survives: bool
) -> None:
    def fail(*_: object) -> None:
        raise ConfigError("a failure")

    monkeypatch.setattr(module, "_advance", fail)
    llm = LLM(pair.target, SPEC, on_drafter_error="plain" if survives else "raise")
    with nullcontext() if survives else pytest.raises(ConfigError, match="a failure"):
        llm.finish_draft_head()


def test_a_failed_portion_starts_the_fit_again(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, predictions: list[int]
) -> None:
    advance, calls = module._advance, []

    def fail_once(*arguments: object) -> object:
        calls.append(1)
        if len(calls) == 2:
            raise ConfigError("a failure")
        return advance(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "_advance", fail_once)
    with simulated_cuda():
        llm = LLM(moved(copy.deepcopy(pair.target)), SPEC, batch_invariant=False)
        with pytest.raises(ConfigError, match="a failure"):
            answers(llm, pair.prompts[:1], COUNT)
        tokens = answers(llm, pair.prompts[:3], COUNT)
    assert tokens == [answer[:COUNT] for answer in pair.answers[:3]]
    assert predictions
