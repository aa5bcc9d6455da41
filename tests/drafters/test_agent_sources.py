"""Test the drafts that `auto` takes from grammars' forced tokens and from predictions."""

from __future__ import annotations

from typing import Any

import pytest

from paceline import LLM, SamplingParams, demo, grammars
from paceline.core.origin import Origin
from paceline.core.request import Request
from paceline.drafters.auto.grammar_source import GrammarSource
from paceline.drafters.auto.prediction_source import PredictedPosition, PredictionSource
from paceline.errors import ConfigError

LARK = 'start: "{\\"name\\": \\"get_weather\\", \\"city\\": \\"" /[a-z]+/ "\\"}"'
PROMPT = "def add(a, b):"


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM(demo.TARGET, "none", dtype="float32")


def grammar_of(llm: LLM) -> grammars.Grammar:
    return grammars.lark(llm.tokenizer, LARK, llm.eos_token_ids)


def test_forced_tokens_are_drafted(llm: LLM) -> None:
    """Check that all forced tokens are drafted at once, and none where the model may choose."""
    source = GrammarSource()
    request = Request([5, 6], SamplingParams(40, logits_processors=[grammar_of(llm)]))
    source.start(request)
    (tree,) = source.propose([request], [20])
    text = llm.tokenizer.decode(tree.token_ids)
    assert text.startswith('{"name": "get_weather"')
    assert set(tree.origins or ()) == {Origin.GRAMMAR}
    request.append(tree.token_ids)
    request.append(llm.tokenizer(' "', add_special_tokens=False)["input_ids"])
    source.stop(request)
    assert source.propose([request], [20])[0].token_ids == []


def test_requests_without_grammar_get_no_drafts() -> None:
    source, request = GrammarSource(), Request([5], SamplingParams(4))
    source.start(request)
    assert source.propose([request], [8])[0].token_ids == []


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_answers_equal_plain_decoding(llm: LLM, temperature: float) -> None:
    def answer(drafter: str) -> Any:
        params = SamplingParams(
            60, temperature, seed=2, logits_processors=[grammar_of(llm)], speculation=drafter
        )
        return llm.generate(PROMPT, params)[0]

    plain, drafted = answer("none"), answer("auto:budget=false")
    assert drafted.token_ids == plain.token_ids
    assert drafted.stats.target_forwards < plain.stats.target_forwards


def test_predictions_resume_after_a_mismatch() -> None:
    position = PredictedPosition([1, 2, 3, 4, 5, 6, 7, 8])
    position.follow([])
    assert position.next_tokens(3) == (1, 2, 3)
    position.follow([1, 2])
    assert position.next_tokens(2) == (3, 4)
    position.follow([1, 2, 99])
    assert position.next_tokens(2) == ()
    position.follow([1, 2, 99, 4, 5, 6])
    assert position.next_tokens(9) == (7, 8)


@pytest.mark.parametrize("is_text", [True, False])
def test_predictions_save_forwards(llm: LLM, is_text: bool) -> None:
    """Check that a right prediction is accepted and a wrong one changes nothing."""
    plain = llm.generate(PROMPT, SamplingParams(24))[0]
    right: Any = plain.text if is_text else plain.token_ids
    for prediction in (right, "Something else" if is_text else [7, 8, 9]):
        params = SamplingParams(24, prediction=prediction, speculation="auto:budget=false")
        assert llm.generate(PROMPT, params)[0].token_ids == plain.token_ids
    source = PredictionSource()
    request = Request([5], SamplingParams(24, prediction=plain.token_ids))
    source.start(request)
    assert source.propose([request], [4])[0].token_ids == plain.token_ids[:4]


def test_invalid_predictions_are_refused(llm: LLM) -> None:
    for prediction in ([-1], 5, ["a"]):
        with pytest.raises(ConfigError, match="prediction"):
            SamplingParams(prediction=prediction)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="prediction: got token id"):
        llm.generate(PROMPT, SamplingParams(4, prediction=[10**6]))
