"""Test commands, grammars and draft models with a model in llama.cpp."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from paceline import LLM, SamplingParams
from paceline.errors import PacelineError
from tests.support.cli import call, usage_error
from tests.support.llama_cpp import needs_library

pytestmark = needs_library
ENGINE = ("--engine", "llama.cpp", "--threads", "1")


def test_doctor_shows_the_library(file: Path) -> None:
    status, text = call("doctor", file, *ENGINE)
    assert status == 0
    assert re.search(r"computes in +(xllamacpp|llama-cpp-python)", text)
    assert "on: the self-test passed on this machine" in " ".join(text.split())


def test_generate_and_verify(file: Path) -> None:
    status, text = call("generate", file, "ab", *ENGINE, "-n", "4")
    assert status == 0
    assert text
    words = ("--drafter", "prompt_lookup", "--limit", "2", "-n", "6", "--batch", "1,2")
    status, text = call("verify", file, *ENGINE, *words)
    assert status == 0
    assert "0 of 4 answers differ" in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("serve", "MISSING.gguf", *ENGINE), "no GGUF file at"),
        (("chat", "FILE", *ENGINE, "--dtype", "float16"), "dtype: got 'float16'"),
        (("bench", "demo", *ENGINE), "expected a GGUF file"),
        (("generate", "FILE", "ab", "--engine", "llamacpp"), "Did you mean llama.cpp"),
    ],
)
def test_invalid_arguments_get_one_line(
    file: Path,
    words: tuple[str, ...],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    error = usage_error(
        [str(file) if word == "FILE" else word for word in words], monkeypatch, capsys
    )
    assert message in error
    assert "Traceback" not in error


def test_answers_follow_a_grammar_under_every_drafter(file: Path) -> None:
    pytest.importorskip("llguidance")
    from paceline.grammars import regex

    answers = []
    for drafter in ("none", "auto:budget=false"):
        llm = LLM(str(file), drafter, engine="llama.cpp", device="cpu")
        grammar = regex(llm.tokenizer, "(ab|cd){3,5}", llm.eos_token_ids)
        params = SamplingParams(max_new_tokens=20, logits_processors=[grammar])
        answers += llm.generate(["abc"], params)
    assert re.fullmatch("(ab|cd){3,5}", answers[0].text)
    assert answers[1].token_ids == answers[0].token_ids
    assert answers[1].stats.accepted_tokens > 0


def test_draft_model_runs_in_transformers(file: Path) -> None:
    plain = LLM(str(file), "none", engine="llama.cpp", device="cpu")
    llm = LLM(
        str(file),
        "draft_model:budget=false",
        draft_model=str(file),
        engine="llama.cpp",
        device="cpu",
    )
    params = SamplingParams(max_new_tokens=12, ignore_eos=True)
    answers = llm.generate([[5, 9, 11], [30, 31]], params)
    expected = plain.generate([[5, 9, 11], [30, 31]], params)
    assert [each.token_ids for each in answers] == [each.token_ids for each in expected]
    assert sum(each.stats.accepted_tokens for each in answers) > 0


def test_draft_model_with_another_vocabulary_is_refused(file: Path) -> None:
    with pytest.raises(PacelineError, match="tokenizer"):
        LLM(str(file), "draft_model", draft_model="demo", engine="llama.cpp", device="cpu")
