"""Test SmolLM2 in float32 against transformers: a conversation and long prompts."""

from __future__ import annotations

import copy
import functools
import random
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from transformers import DynamicCache

from paceline import LLM, SamplingParams
from paceline.integrations.transformers import Strategy, generate
from paceline.model.forward_arguments import GENERATE_CACHE
from tests.support.real import NAMES, NEEDS_REAL, Real

pytestmark = NEEDS_REAL

QUESTIONS = (
    "Name a fruit and its colour.",
    "Name another fruit and its colour.",
    "Say the first answer again.",
)
SYSTEM = {"role": "system", "content": "Be brief."}
TURN = 8
LONG = 1200
VERY_LONG = 2400
ANSWER = 8
AT_ONCE = ("sssd", "lookahead")
THINGS = ("cups", "plates", "spoons", "lamps", "chairs", "books", "coats", "bells")


def test_model_and_tokenizer(real: Real) -> None:
    config = real.model.config
    assert (config.num_hidden_layers, config.hidden_size, config.vocab_size) == (30, 576, 49152)
    llm = LLM(real.model, "none", tokenizer=real.tokenizer)
    assert llm.eos_token_ids == [2]
    assert llm.max_length == 8192
    text = real.tokenizer.decode(llm.chat_prompt([{"role": "user", "content": "Hi"}]))
    assert text.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
    answer = llm.chat(
        [{"role": "user", "content": "What is the capital of France?"}], SamplingParams(32)
    )
    assert "Paris" in answer.text
    assert answer.finish_reason == "stop"


def test_tokenizer_round_trip(real: Real) -> None:
    for text in (
        "def f(x):\n    return x[1:]\n",
        "12345 and 3.14",
        "naïve café, 你好 \U0001f600",
        "  two  spaces",
    ):
        assert real.tokenizer.decode(real.tokenizer(text)["input_ids"]) == text


@pytest.fixture(scope="module")
def turns(real: Real) -> list[list[int]]:
    """Return the answers of transformers to the questions as one conversation."""
    llm = LLM(real.model, "none", tokenizer=real.tokenizer)
    messages, answers = [SYSTEM], []
    for question in QUESTIONS:
        messages.append({"role": "user", "content": question})
        answers += real.references([llm.chat_prompt(messages)], TURN)
        messages.append(
            {
                "role": "assistant",
                "content": real.tokenizer.decode(answers[-1], skip_special_tokens=True),
            }
        )
    return answers


@pytest.mark.parametrize("spec", ["prompt_lookup", "sssd", "lookahead", "pia"])
def test_conversation_of_several_turns(spec: str, real: Real, turns: list[list[int]]) -> None:
    llm = real.engine(spec, turns)
    messages, accepted = [SYSTEM], 0
    for question, expected in zip(QUESTIONS, turns, strict=True):
        messages.append({"role": "user", "content": question})
        answer = llm.chat(messages, SamplingParams(TURN))
        assert answer.token_ids == expected
        messages.append({"role": "assistant", "content": answer.text})
        accepted += answer.stats.accepted_tokens
    assert accepted > 0


class LongPrompt(NamedTuple):
    """A prompt [1, length], the cache without its last 32 tokens, and the expected answer."""

    ids: Any
    cache: DynamicCache
    answer: list[int]


@pytest.fixture(scope="module")
def long_prompts(real: Real) -> Callable[[int], LongPrompt]:
    return functools.cache(functools.partial(long_prompt, real))


def long_prompt(real: Real, length: int) -> LongPrompt:
    ids = torch.tensor([inventory(real.tokenizer, length)])
    cache = DynamicCache(config=real.model.config)
    with torch.inference_mode():
        real.model(ids[:, : length - 32], **{GENERATE_CACHE: cache}, logits_to_keep=1)
    out = real.model.generate(
        ids, **{GENERATE_CACHE: copy.deepcopy(cache)}, max_new_tokens=ANSWER, do_sample=False
    )
    return LongPrompt(ids, cache, out[0, length:].tolist())


def inventory(tokenizer: Any, length: int) -> list[int]:
    """Return a list of boxes and their content, followed by the start of the list."""
    chance = random.Random(1)
    lines = [
        f"Box {place}: {chance.randrange(2, 99)} {chance.choice(THINGS)}" for place in range(1, 400)
    ]
    end: list[int] = tokenizer("\n".join(["", "", "The same list again:", *lines[:3], "Box"]))[
        "input_ids"
    ]
    ids: list[int] = tokenizer("\n".join(lines))["input_ids"]
    return ids[: length - len(end)] + end


@pytest.mark.parametrize(
    ("spec", "length", "end"),
    [
        ("none", LONG, 600),
        ("sssd", LONG, 32),
        *(pytest.param(spec, VERY_LONG, 32, marks=pytest.mark.slow) for spec in NAMES),
    ],
)
def test_answers_after_a_long_cached_prompt(
    spec: str, length: int, end: int, real: Real, long_prompts: Callable[[int], LongPrompt]
) -> None:
    """Check the end of a prompt and the answer with a cache from transformers.

    An end of 600 tokens takes two forward passes.
    """
    long = long_prompts(length)
    held = length - end
    cache = copy.deepcopy(long.cache)
    if end > 32:
        cache.crop(held - length + 32)
    text = [*long.ids[0, held:].tolist(), *long.answer]
    strategy = Strategy(real.with_store(spec, [text] * 2))
    out = generate(
        real.model,
        long.ids,
        drafter=strategy,
        **{GENERATE_CACHE: cache},
        max_new_tokens=ANSWER,
        do_sample=False,
    )
    assert out[0, length:].tolist() == long.answer
    (stats,) = strategy.stats
    assert stats.prefill_forwards == (2 if end > 32 else 1)
    if spec != "token_recycling":  # its table has only the target's predictions since the cache
        assert (stats.accepted_tokens > 0) == (spec != "none")


@pytest.mark.slow
@pytest.mark.parametrize("spec", AT_ONCE)
def test_long_prompts_without_a_cache(
    spec: str, real: Real, long_prompts: Callable[[int], LongPrompt]
) -> None:
    long = long_prompts(VERY_LONG)
    (out,) = LLM(real.model, spec, tokenizer=real.tokenizer).generate(
        long.ids.tolist(), SamplingParams(ANSWER)
    )
    assert out.token_ids == long.answer
    assert out.stats.accepted_tokens > 0
