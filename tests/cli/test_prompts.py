"""Test `paceline prompts`, which lets a model generate prompts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from paceline import LLM, SamplingParams, demo
from paceline.errors import ConfigError
from paceline.replay.made_up import MadeUp, make_up
from paceline.report.prompts import load_prompts
from paceline.text.conversations import around_question
from tests.support.cli import call
from tests.support.shared import interrupt

SAMPLED = SamplingParams(max_new_tokens=160, temperature=1.0)


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM(demo.TARGET, "none", dtype="float32", max_batch=16)


def last(made: Iterator[MadeUp]) -> MadeUp:
    return list(made)[-1]


def test_the_file_has_prompts_for_other_commands(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "prompts.jsonl"
    assert call("prompts", "demo", "--count", "5", "--out", str(out), "--batch", "8")[0] == 0
    prompts = load_prompts([out])
    assert len({one.text for one in prompts}) == len({one.id for one in prompts}) == 5
    assert {one.category for one in prompts} == {"made-up"}
    assert f"wrote {out}: 5 prompts" in capfd.readouterr().err


def test_each_prompt_depends_only_on_its_seed(llm: LLM) -> None:
    before, _ = around_question(llm.tokenizer, "here")
    opening = llm.tokenizer(before, add_special_tokens=False)["input_ids"]
    assert llm.chat_prompt([{"role": "user", "content": "Why?"}])[: len(opening)] == opening
    alone, together = (
        last(make_up(llm, 2, SAMPLED, batch=3)),
        last(make_up(llm, 2, SAMPLED, batch=16)),
    )
    assert alone.prompts == together.prompts
    for prompt in alone.prompts:
        number = int(prompt.id.split("/")[1])
        output = llm.generate([opening], replace(SAMPLED, seed=number))[0]
        assert (output.text.strip(), output.finish_reason) == (prompt.text, "stop")


def test_unfinished_and_repeated_prompts_are_left_out(llm: LLM) -> None:
    short = last(make_up(llm, 10, replace(SAMPLED, max_new_tokens=64), batch=16))
    assert 0 < len(short.prompts) < 10
    assert short.tries == 40
    assert all(len(llm.tokenizer(one.text)["input_ids"]) <= 64 for one in short.prompts)


def test_bad_options_and_templates_are_refused(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(match: str, params: SamplingParams = SAMPLED, **options: Any) -> None:
        with pytest.raises(ConfigError, match=match):
            last(make_up(llm, **{"count": 2, "params": params, **options}))

    refused("temperature: got 0", replace(SAMPLED, temperature=0))
    refused("count: got 0", count=0)
    refused("batch: got 0", batch=0)
    refused("none of 8 texts ended within 1 tokens", replace(SAMPLED, max_new_tokens=1))
    monkeypatch.setattr(llm.tokenizer, "chat_template", "{{ 'only this' }}")
    refused("leaves out the user's message")
    monkeypatch.setattr(llm.tokenizer, "chat_template", "{{ messages[0]['content'] }}")
    refused("nothing before the first user message")
    monkeypatch.setattr(llm.tokenizer, "chat_template", None)
    refused("no chat template")


def test_ctrl_c_keeps_finished_prompts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "prompts.jsonl"
    words = ("prompts", "demo", "--count", "100", "--batch", "12", "--out", str(out))
    for batches in (1, 0):
        interrupt(monkeypatch, batches + 1)
        with pytest.raises(KeyboardInterrupt):
            call(*words)
        assert "interrupted" in capfd.readouterr().err
        assert len(load_prompts([out])) > 0  # without new prompts, the old file stays
