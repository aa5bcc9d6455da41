"""Test `paceline generate`: input files, JSON lines and interruptions.

Also test values that begin with a dash.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from paceline import LLM, SamplingParams
from paceline.cli import answers, demo, generate, replay
from paceline.cli.answers import CliPrompt, answer_all, answered
from paceline.cli.generate import read_prompts
from paceline.cli.main import run
from paceline.errors import ConfigError
from paceline.model.cached_lm import CachedLM
from tests.support.cli import call

PROMPTS = [f"Count to {number}." for number in range(11)]
PARAMS = SamplingParams(max_new_tokens=12)


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM("demo", "prompt_lookup", dtype="float32")


def interrupted_after(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Raise KeyboardInterrupt after `count` outputs."""

    def some(*arguments: Any) -> Iterator[Any]:
        for number, one in enumerate(answered(*arguments)):
            if number == count:
                raise KeyboardInterrupt
            yield one

    monkeypatch.setattr(answers, "answered", some)


def test_outputs_arrive_as_they_finish_and_equal_a_batch(llm: LLM) -> None:
    wanted = llm.generate(PROMPTS, PARAMS)
    found = dict(answered(llm, PROMPTS, PARAMS))
    assert sorted(found) == list(range(len(PROMPTS)))
    assert [found[index].token_ids for index in range(len(PROMPTS))] == [
        one.token_ids for one in wanted
    ]
    assert [found[index].text for index in range(len(PROMPTS))] == [one.text for one in wanted]


def test_requests_share_a_batch_and_closing_frees_them(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    together: list[int] = []
    forward = CachedLM.forward_nodes

    def watched(self: CachedLM, requests: Any, *args: Any) -> Any:
        together.append(len(requests))
        return forward(self, requests, *args)

    monkeypatch.setattr(CachedLM, "forward_nodes", watched)
    outputs = answered(llm, PROMPTS, PARAMS)
    next(outputs)
    outputs.close()
    assert max(together) > 4
    assert llm.model.open_sequences == 0


def test_prompt_files_and_json_lines(tmp_path: Path) -> None:
    lines = [
        {"id": 7, "prompt": "One."}, {"text": "Two."}, {"turns": ["Three.", "Four."]},
        {"messages": [{"role": "user", "content": "Five."}]},
    ]  # fmt: skip
    (tmp_path / "p.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n\n")
    (tmp_path / "p.txt").write_bytes(b"- Six\r\n\nSeven\xc2\x85\n")
    out = tmp_path / "out.jsonl"
    words: list[str | Path] = [
        "-n",
        "4",
        "--drafter",
        "none",
        "--output",
        out,
        "--max-length",
        "200",
        "--tokenizer",
        "demo",
    ]
    assert call("generate", "demo", "Zero.", "--file", tmp_path / "p.jsonl", *words) == (0, "")
    found = [json.loads(line) for line in out.read_text().splitlines()]
    assert [one["prompt"] for one in found] == ["Zero.", "One.", "Two.", "Three.", "Five."]
    assert [one["id"] for one in found] == [None, "7", None, None, None]
    assert [one["index"] for one in found] == list(range(5))
    assert all(
        len(one["token_ids"]) <= 4 and one["finish_reason"] in ("length", "stop") for one in found
    )
    assert [one.text for one in read_prompts(tmp_path / "p.txt")] == ["- Six", "Seven\x85"]
    assert (
        call("generate", "demo", "--file", tmp_path / "p.txt", "--system", "- be kind", *words)[0]
        == 0
    )
    assert len(out.read_text().splitlines()) == 2  # the file is overwritten


@pytest.mark.parametrize(
    "line",
    ["{", '{"x": 1}', '{"prompt": 1}', '{"turns": []}', '["x"]', '{"prompt": "\\ud800"}', "\udcff"],
)
def test_the_error_names_invalid_lines(line: str, tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text(
        '{"prompt": "x"}\n' + line, encoding="utf-8", errors="surrogateescape"
    )
    with pytest.raises(ConfigError, match=r"p\.jsonl:2"):
        read_prompts(tmp_path / "p.jsonl")


def test_missing_prompts_and_unwritable_outputs_are_refused(tmp_path: Path) -> None:
    for words in ((), ("--file", tmp_path / "none"), ("x", "--output", "no/such/folder/file")):
        with pytest.raises(ConfigError):
            call("generate", "demo", *words)


def test_an_interruption_keeps_finished_outputs(
    llm: LLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.jsonl"
    interrupted_after(3, monkeypatch)
    assert answer_all(llm, [CliPrompt(text, None, text) for text in PROMPTS], PARAMS, out) == 130
    assert len(out.read_text().splitlines()) == 3
    assert f"3 of {len(PROMPTS)} prompts were answered" in capfd.readouterr().err
    assert llm.model.open_sequences == 0


def test_an_interrupted_replay_keeps_its_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "t.jsonl").write_text(json.dumps({"prompt": [1, 2, 1], "output": [2, 1, 2]}) + "\n")
    words = [
        "replay",
        str(tmp_path / "t.jsonl"),
        "--drafters",
        "prompt_lookup",
        "--json",
        str(tmp_path / "r.json"),
    ]
    made = replay._drafter
    calls = iter(range(10))

    def interrupted(spec: str, tokenizer: Any) -> Any:
        if next(calls) == 3:  # after one call to compile and two of three tree sizes
            raise KeyboardInterrupt
        return made(spec, tokenizer)

    monkeypatch.setattr(replay, "_drafter", interrupted)
    assert run(words) == 130
    assert len(json.loads((tmp_path / "r.json").read_text())["rows"]) == 2
    assert "interrupted; 2 replays were finished" in capfd.readouterr().err


def test_an_interrupted_demo_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "_check", lambda *arguments: False)
    monkeypatch.setattr(
        demo, "run_and_report", lambda *arguments: pytest.fail("the demo continued")
    )
    assert call("demo", "--small", "--output", tmp_path)[0] == 130


@pytest.mark.parametrize(
    "text", ["-", "-5", "-5 degrees", "-> x", "- item", "--help me", "-n is a flag", "-\n-", "---"]
)
def test_words_that_are_not_options_are_values(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def stop(*prompts: str, **rest: Any) -> Any:
        seen.append(prompts)
        raise ConfigError("seen")

    monkeypatch.setattr(generate, "build_llm", stop)
    monkeypatch.setattr(generate, "read_prompt", lambda: "-")
    monkeypatch.setattr(
        generate, "refuse_standard_input", lambda parallel, prompts: seen.append(prompts)
    )
    with pytest.raises(ConfigError, match="seen"):
        run(["generate", "demo", text, "--stop", text if text != "-n" else "x"])
    assert seen[0] == (text,)
    with pytest.raises(ConfigError, match="seen"):
        run(["generate", "demo", "x", "--stop=-x", "--", "--help"])
    assert ("x", "--help") in seen
