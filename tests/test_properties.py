"""Test random parameters and prompts: outputs are correct, or a typed error."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from paceline import LLM, SamplingParams
from paceline.errors import PacelineError
from paceline.sampling import sampler
from tests.support.shared import Pair

VOCAB, LONGEST = 256, 20
CLOSE = 1e-3  # scores that are closer may be ordered differently in float32

# Allowed values of each parameter, including its limits; `NONSENSE` has values of other types.
FINE: dict[str, st.SearchStrategy[Any]] = {
    "max_new_tokens": st.integers(1, 4) | st.just(1 << 70),
    "temperature": st.just(0) | st.floats(0, 1e-3) | st.floats(0.3, 2),
    "top_k": st.just(0) | st.integers(1, 300) | st.just(1 << 70),
    "top_p": st.floats(0, 1, exclude_min=True) | st.just(1),
    "min_p": st.floats(0, 1) | st.just(0),
    "repetition_penalty": st.floats(0.5, 2) | st.just(1),
    "seed": st.integers(),
    "stop": st.none()
    | st.text(st.characters(codec="ascii"), min_size=1, max_size=2)
    | st.lists(st.just("e"), max_size=2),
    "ignore_eos": st.booleans(),
    "min_tokens": st.integers(0, 1),
    "presence_penalty": st.floats(-2, 2),
    "frequency_penalty": st.floats(-2, 2),
    "stop_token_ids": st.none()
    | st.integers(0, VOCAB - 1)
    | st.lists(st.integers(0, VOCAB - 1), max_size=90),
    "logit_bias": st.none()
    | st.dictionaries(st.integers(0, VOCAB - 1), st.floats(-100, 100), max_size=9),
    "bad_words": st.lists(
        st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=2) | st.just("ab"), max_size=40
    ),
    "logprobs": st.none() | st.integers(0, 3) | st.just(1 << 70),
}
NONSENSE = st.sampled_from(
    [
        None,
        "4",
        b"x",
        [],
        {},
        -1,
        -0.5,
        1.5,
        2.5,
        True,
        0,
        math.nan,
        math.inf,
        -math.inf,
        1j,
        object(),
        ("",),
        "\ud800",
        [3],
    ]
)
IDS = st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=LONGEST - 1)
PROMPTS = (
    IDS
    | IDS.map(lambda ids: [*ids, *ids][: LONGEST - 1])
    | IDS.map(torch.tensor)
    | st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=9)
)
BAD_PROMPTS = (
    st.binary()
    | st.sampled_from(
        [
            [],
            "",
            [VOCAB],
            [-1],
            [1.0],
            [True],
            [[1]],
            None,
            3,
            {},
            {1: 2},
            "\ud800",
            [1 << 80],
            [1] * LONGEST,
            object(),
        ]
    )
    | st.lists(st.integers(-2, VOCAB + 1), max_size=4)
)


@pytest.fixture(scope="module")
def llm(pair: Pair, tokenizer: Any) -> LLM:
    return pair.engine("prompt_lookup", tokenizer=tokenizer, max_length=LONGEST)


@settings(max_examples=40, phases=[Phase.generate])
@given(prompt=PROMPTS, values=st.fixed_dictionaries({}, optional=FINE))
def test_valid_input_gives_correct_outputs(llm: LLM, prompt: Any, values: dict[str, Any]) -> None:
    _check(llm, prompt, SamplingParams(**values))


@settings(max_examples=150, phases=[Phase.generate])
@given(
    prompt=PROMPTS | BAD_PROMPTS,
    values=st.fixed_dictionaries(
        {}, optional={name: fine | NONSENSE for name, fine in FINE.items()}
    ),
    params=st.none() | NONSENSE,
)
def test_other_input_raises_a_typed_error(
    llm: LLM, prompt: Any, values: dict[str, Any], params: Any
) -> None:
    error = ""
    try:
        given_params = (
            SamplingParams(**{"max_new_tokens": 2, **values}) if params is None else params
        )
        if not isinstance(given_params, SamplingParams):
            llm.generate([prompt], given_params)
        else:
            _check(llm, prompt, given_params)
    except PacelineError as one:
        error = str(one)
    assert "\n" not in error
    assert error.endswith(".") or not error
    assert llm.model.open_sequences == 0


def _check(llm: LLM, prompt: Any, params: SamplingParams) -> None:
    """Check an output by the definition of every parameter, in float64."""
    (out,) = llm.generate([prompt], params)
    ids = (
        llm.tokenizer(prompt)["input_ids"]
        if isinstance(prompt, str)
        else [int(token) for token in prompt]
    )
    tokens = [*ids, *out.token_ids]
    with torch.inference_mode():
        logits = llm.model.model(torch.tensor([tokens])).logits[0].double()
    for index, token in enumerate(out.token_ids):
        end = len(ids) + index
        adjusted = _adjusted(logits[end - 1], tokens[:end], len(ids), params, llm)
        allowed, certain = (_scores(adjusted, params, slack) for slack in (CLOSE, -CLOSE))
        if not params.greedy:
            key = sampler.noise_key(params.seed, index, sampler.TARGET)
            noise = sampler.exponential_noise([key], VOCAB, logits.device)[0].double().log()
            allowed, certain = allowed - noise, certain - noise
        assert allowed[token] >= certain.max() - CLOSE * max(1.0, float(logits.abs().max()))
        assert _ends(llm, out.token_ids[: index + 1], params) == (
            index + 1 == len(out.token_ids) and out.finish_reason == "stop"
        )
        if params.logprobs is not None:
            assert out.logprobs is not None
            assert out.logprobs[index][token] == pytest.approx(
                float(logits[end - 1].log_softmax(-1)[token]), abs=CLOSE
            )
            assert len(out.logprobs[index]) in (min(params.logprobs, VOCAB), params.logprobs + 1)
    if out.finish_reason == "length":
        assert len(out.token_ids) == min(params.max_new_tokens, LONGEST - len(ids))


def _adjusted(
    logits: torch.Tensor, seen: list[int], prompt_length: int, params: SamplingParams, llm: LLM
) -> torch.Tensor:
    """Return scores adjusted for the previous tokens, computed one token at a time."""
    scores, answer = logits.clone(), seen[prompt_length:]
    for token, bias in (params.logit_bias or {}).items():
        scores[token] += bias
    previous = scores[seen]
    scores[seen] = torch.where(
        previous < 0,
        previous * params.repetition_penalty,
        previous / params.repetition_penalty,
    )
    for token in set(answer):
        scores[token] -= params.frequency_penalty * answer.count(token) + params.presence_penalty
    words = [ids for ids in params.bad_words if not isinstance(ids, str)]
    if len(words) < len(params.bad_words):
        words += [
            llm.tokenizer(text, add_special_tokens=False)["input_ids"] for text in ("ab", " ab")
        ]
    for word in words:
        *before, last = word
        if answer[len(answer) - len(before) :] == before:
            scores[last] = -math.inf
    if len(answer) < params.min_tokens:
        scores[
            [*params.stop_token_ids, *([] if params.ignore_eos else llm.eos_token_ids)]
        ] = -math.inf
    return scores


def _scores(adjusted: torch.Tensor, params: SamplingParams, slack: float) -> torch.Tensor:
    """Return the logarithms of the target distribution up to a constant.

    Tokens near the edge of a truncation are kept within `slack`.
    """
    if params.greedy:
        return adjusted
    scores = adjusted
    scores = (scores - scores.max()) / params.temperature
    excluded = torch.zeros(VOCAB, dtype=torch.bool)
    if 0 < params.top_k < VOCAB:
        excluded |= scores < scores.topk(params.top_k).values[-1] - slack
        scores = scores.masked_fill(excluded, -math.inf)
    ordered = scores.softmax(-1).sort(descending=True)
    before = ordered.values.cumsum(-1) - ordered.values
    excluded[ordered.indices[before >= params.top_p + slack]] |= params.top_p < 1
    excluded |= scores.exp() < params.min_p * (1 - slack)
    excluded[ordered.indices[0]] = False
    return scores.masked_fill(excluded, -math.inf)


def _ends(llm: LLM, answer: list[int], params: SamplingParams) -> bool:
    ended = not params.ignore_eos and answer[-1] in llm.eos_token_ids
    ended |= answer[-1] in params.stop_token_ids
    return ended or any(
        stop in llm.tokenizer.decode(answer, skip_special_tokens=True) for stop in params.stop
    )
