"""What a model says follows its commonest tokens, and that drafters are told in time and no text depends on it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from paceline import LLM, SamplingParams, drafters
from paceline.common import cache
from paceline.drafters.auto.drafter import Auto
from paceline.drafters.auto.options import AutoOptions
from paceline.engine import bigrams as module
from paceline.engine.bigrams import bigrams
from paceline.engine.drafter import TopTokens
from paceline.engine.model import CachedLM
from tests.support.models import make
from tests.support.shared import COUNT, Pair


def test_they_are_what_the_model_says_behind_the_first_token(pair: Pair) -> None:
    model = CachedLM(pair.target)
    found = bigrams(model)
    assert found.token_ids.shape == found.probs.shape == (model.vocab_size, 8)
    first = pair.target.config.bos_token_id
    for token in (0, 7, model.vocab_size - 1):
        probs = model.plain_logits([first, token]).softmax(-1)
        np.testing.assert_allclose(found.probs[token], probs.topk(8).values, atol=2e-4)
        np.testing.assert_allclose(probs[torch.from_numpy(found.token_ids[token])], found.probs[token], atol=2e-4)


def test_no_forward_is_begun_after_the_time_is_up(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_WIDEST", 16)
    monkeypatch.setattr(module, "_MOST_SECONDS", 0.0)
    assert len(bigrams(CachedLM(pair.target)).token_ids) == 16


def test_a_model_that_takes_chains_only_has_none() -> None:
    model = CachedLM(make("falcon_alibi", "eager"))
    assert not model.takes_trees
    assert bigrams(model).token_ids.shape == (0, 8)


def test_those_of_a_large_model_are_kept(pair: Pair, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path))
    monkeypatch.setattr(module, "_WORTH_KEEPING", 0)
    first = bigrams(CachedLM(pair.target))
    with monkeypatch.context() as patch:
        patch.setattr(module, "_find", lambda model, tokens: pytest.fail("it is there"))
        again = bigrams(CachedLM(pair.target))
    np.testing.assert_array_equal(first.token_ids, again.token_ids)
    np.testing.assert_array_equal(first.probs, again.probs)
    other = bigrams(CachedLM(pair.draft))  # other weights of the same shapes
    assert not np.array_equal(first.token_ids, other.token_ids)


def test_damaged_ones_are_found_again(pair: Pair, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path))
    monkeypatch.setattr(module, "_WORTH_KEEPING", 0)
    first = bigrams(CachedLM(pair.target))
    (file,) = tmp_path.glob("*/*/bigrams.json")
    text = file.read_text()
    file.write_text(text.replace('"k": 8', '"k": 7'))  # as long as it was, which is what the card knows
    np.testing.assert_array_equal(bigrams(CachedLM(pair.target)).token_ids, first.token_ids)


class Watched(Auto):
    """Writes down what it is told, and tells itself something else."""

    told: list[TopTokens]

    def take_bigrams(self, bigrams: TopTokens) -> None:
        self.told = [*getattr(self, "told", []), bigrams]
        super().take_bigrams(TopTokens(bigrams.token_ids[::-1].copy(), bigrams.probs))


def test_a_drafter_is_told_once_and_wrong_ones_change_no_text(pair: Pair) -> None:
    drafter = Watched(AutoOptions(nodes=8, budget=False))
    llm = LLM(pair.target, drafter)
    params = SamplingParams(max_new_tokens=COUNT)
    for _ in range(2):
        answers = llm.generate(pair.prompts[:3], params)
        assert [answer.token_ids for answer in answers] == [expected[:COUNT] for expected in pair.answers[:3]]
    assert len(drafter.told) == 1


def test_auto_guesses_from_the_first_step_on(pair: Pair) -> None:
    """Of tokens that are in no prompt: with them there is a tree at once, without there is none."""
    drafted = []
    for spec in ("auto:nodes=8,budget=false", "auto:nodes=8,budget=false,bigrams=false"):
        (answer,) = LLM(pair.target, drafters.create(spec)).generate([[5, 9, 13]], SamplingParams(max_new_tokens=4))
        drafted.append(answer.stats.drafted_tokens)
    assert drafted[0] > drafted[1]
