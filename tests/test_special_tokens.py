"""Test special tokens in output texts, which are hidden or shown."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from tokenizers.processors import TemplateProcessing

from paceline import LLM, SamplingParams, demo
from paceline.errors import ConfigError
from tests.support.serving import Served, served
from tests.support.tokenizers import llama_tokenizer

PROMPT = "def add(a, b):"


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM(demo.TARGET, "prompt_lookup", dtype="float32")


@pytest.fixture(scope="module")
def server(llm: LLM) -> Iterator[Served]:
    with served(llm, ()) as one:
        yield one


@pytest.fixture(scope="module")
def shown(llm: LLM) -> SamplingParams:
    """Return parameters for an output of 8 tokens, the fourth of which is special."""
    (special,) = llm.eos_token_ids[:1]
    length = len(llm.tokenizer(PROMPT)["input_ids"]) + 3

    def fourth(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if ids.shape[1] == length:
            scores[:, special] = 1e4
        return scores

    return SamplingParams(8, logits_processors=[fourth], ignore_eos=True, skip_special_tokens=False)


def name_of(llm: LLM) -> str:
    return str(llm.tokenizer.convert_ids_to_tokens(llm.eos_token_ids[0]))


def streamed(llm: LLM, params: SamplingParams) -> list[str]:
    """Return the text of an output from a stream and from asyncio."""
    (out,) = asyncio.run(llm.agenerate([PROMPT], params))
    return ["".join(chunk.text for chunk in llm.stream(PROMPT, params)), out.text]


def test_special_tokens_are_shown_or_hidden(llm: LLM, shown: SamplingParams) -> None:
    (out,) = llm.generate(PROMPT, shown)
    assert out.text == llm.tokenizer.decode(out.token_ids, skip_special_tokens=False)
    assert out.text.count(name_of(llm)) == 1
    assert streamed(llm, shown) == [out.text] * 2
    (hidden,) = llm.generate(PROMPT, replace(shown, skip_special_tokens=True))
    assert hidden.token_ids == out.token_ids
    assert hidden.text == llm.tokenizer.decode(out.token_ids, skip_special_tokens=True)
    several = replace(shown, temperature=0.8, seed=1, n=2)
    for one in llm.generate(PROMPT, several)[0].outputs:
        assert one.text == llm.tokenizer.decode(one.token_ids, skip_special_tokens=False)


@pytest.mark.parametrize("skips", [False, True])
def test_stop_strings_may_be_special_tokens(llm: LLM, shown: SamplingParams, skips: bool) -> None:
    """The text ends before the special token, whether special tokens are shown or not."""
    params = replace(shown, stop=(name_of(llm),), skip_special_tokens=skips)
    (out,) = llm.generate(PROMPT, params)
    assert (len(out.token_ids), out.finish_reason) == (4, "stop")
    assert out.text == llm.tokenizer.decode(out.token_ids[:3])
    assert streamed(llm, params) == [out.text] * 2


def test_a_stop_string_may_end_in_a_special_token(llm: LLM, shown: SamplingParams) -> None:
    """The stop string begins before a special token and ends with it."""
    (whole,) = llm.generate(PROMPT, shown)
    before = llm.tokenizer.decode(whole.token_ids[:3])
    params = replace(shown, stop=(before[-1] + name_of(llm),))
    (out,) = llm.generate(PROMPT, params)
    assert (len(out.token_ids), out.text, out.finish_reason) == (4, before[:-1], "stop")
    assert streamed(llm, params) == [out.text] * 2


def test_the_end_token_is_shown_or_hidden(llm: LLM, server: Served) -> None:
    """The end token is part of the text, in the library and in all endpoints."""
    end = llm.eos_token_ids[0]
    (out,) = llm.generate(
        PROMPT, SamplingParams(8, logit_bias={end: 100}, skip_special_tokens=False)
    )
    assert (out.text, out.finish_reason) == (name_of(llm), "stop")
    base: dict[str, Any] = {"temperature": 0, "max_tokens": 8, "logit_bias": {str(end): 100}}
    for skips, text in ((False, name_of(llm)), (True, ""), (None, "")):
        more = base | {"skip_special_tokens": skips}
        found = server.post("/v1/completions", more | {"prompt": PROMPT, "logprobs": 1}).json()[
            "choices"
        ][0]
        assert (found["text"], found["logprobs"]["tokens"]) == (text, [text])
        chat = more | {"messages": [{"role": "user", "content": "Hi"}], "logprobs": True}
        answer = server.post("/v1/chat/completions", chat).json()["choices"][0]
        assert answer["message"]["content"] == text
        assert answer["logprobs"]["content"][0]["bytes"] == list(text.encode())
        events = server.post("/v1/completions", more | {"prompt": PROMPT, "stream": True}).text
        assert (name_of(llm) in events) == bool(text)


@pytest.mark.parametrize("skips", [False, True])
def test_echoed_prompts_show_or_hide_special_tokens(llm: LLM, server: Served, skips: bool) -> None:
    """Texts are echoed as sent; ids are shown with or without special tokens."""
    text = f"{PROMPT}{name_of(llm)}x"
    ids = llm.tokenizer(text)["input_ids"]
    body: dict[str, Any] = {
        "echo": True,
        "max_tokens": 0,
        "logprobs": 0,
        "skip_special_tokens": skips,
    }
    for prompt, wanted in ((text, text), (ids, text.replace(name_of(llm), "") if skips else text)):
        choice = server.post("/v1/completions", body | {"prompt": prompt}).json()["choices"][0]
        assert choice["text"] == wanted
        found = choice["logprobs"]
        assert "".join(found["tokens"]) == wanted
        assert found["text_offset"] == [
            len("".join(found["tokens"][:index])) for index in range(len(ids))
        ]


@pytest.mark.parametrize("skips", [False, True])
def test_echoed_texts_have_no_added_special_tokens(skips: bool) -> None:
    tokenizer = llama_tokenizer()
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    ids = tokenizer("the cat")["input_ids"]
    assert ids[0] == 1
    llm = LLM(demo.TARGET, "none", tokenizer=tokenizer, dtype="float32")
    body: dict[str, Any] = {
        "echo": True,
        "max_tokens": 2,
        "logprobs": 0,
        "temperature": 0,
        "skip_special_tokens": skips,
    }
    with served(llm, ()) as one:
        choice = one.post("/v1/completions", body | {"prompt": "the cat"}).json()["choices"][0]
    found = choice["logprobs"]
    assert choice["text"].startswith("the cat")
    assert found["tokens"][:3] == ["", "", "t"]  # the tokenizer adds a space as well
    assert found["text_offset"][:4] == [0, 0, 0, 1]
    assert "".join(found["tokens"]) == choice["text"]
    for token, offset in zip(found["tokens"], found["text_offset"], strict=True):
        assert choice["text"][offset:].startswith(token)


@pytest.mark.parametrize("value", [None, 0, "no"])
def test_skip_special_tokens_must_be_a_boolean(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"skip_special_tokens: got .*; expected True or False"):
        SamplingParams(skip_special_tokens=value)
