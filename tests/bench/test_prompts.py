"""Test the inputs of bench runs: prompt files and configurations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from paceline import SamplingParams
from paceline.bench import (
    BenchConfig,
    ModelOptions,
    Prompt,
    load_prompts,
    run_bench,
)
from paceline.errors import ConfigError
from paceline.report.prompts import encode, shortened
from paceline.util.options import changed
from tests.bench.test_bench import write_prompts
from tests.support.models import byte_tokenizer
from tests.support.shared import Pair


def test_prompts_come_from_several_files(tmp_path: Path) -> None:
    files = [write_prompts(tmp_path / "a.jsonl"), write_prompts(tmp_path / "b.jsonl", 6)]
    assert [prompt.id for prompt in load_prompts(files, limit=2)] == ["a-0", "a-1", "b-0", "b-1"]
    assert [prompt.id for prompt in load_prompts(files, limit=2, every=3)] == [
        "a-0",
        "a-3",
        "b-0",
        "b-3",
    ]
    assert load_prompts(files)[1].category == "chat"
    assert load_prompts(files)[1].text == "1 abcabcab1 abcabcab"
    embedded = load_prompts()
    assert {prompt.category for prompt in embedded} == {"code", "maths", "chat", "summary"}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", r"p.jsonl:2: got '{'; expected JSON\..* at column 2\]"),
        ("[1]", "p.jsonl:2: got '.1.'; expected an object"),
        ('{"id": "x"}', "p.jsonl:2: got .*; expected an object with .*prompt, text, turns"),
        ('{"prompt": 5}', "2: prompt: got 5; expected a text. Use quotation marks."),
        ('{"id": "x", "category": "c", "turns": "a"}', r"2: turns: got 'a'; .* Write \["),
        ('{"id": "x", "category": "c", "turns": []}', "2: turns:"),
        ('{"id": "x", "category": "c", "turns": [" "]}', "2: got .* not empty"),
        ('{"id": [], "category": "c", "turns": ["a"]}', "2: id"),
    ],
)
def test_the_error_names_a_bad_prompt_line(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text('{"id": "ok", "category": "c", "turns": ["a"]}\n' + line)
    with pytest.raises(ConfigError, match=message):
        load_prompts([path])


def test_all_documented_fields_are_read(tmp_path: Path) -> None:
    talk = [{"role": "user", "content": "Hi"}, {"role": "user", "content": "there"}]
    path = tmp_path / "p.jsonl"
    lines = [{"prompt": "a"}, {"text": "b", "id": 7}, {"turns": ["c"], "category": "x"}]
    path.write_text("\n".join(map(json.dumps, [*lines, {"messages": talk}])))
    assert load_prompts([path]) == [
        Prompt("p:1", "other", "a"),
        Prompt("7", "other", "b"),
        Prompt("p:3", "x", "c"),
        Prompt("p:4", "other", "there", tuple(talk)),
    ]
    text = tmp_path / "q.txt"
    text.write_text("One\n\nTwo\n")
    assert load_prompts([text]) == [Prompt("q:1", "other", "One"), Prompt("q:3", "other", "Two")]
    with pytest.raises(ConfigError, match="no chat template"):
        encode(load_prompts([path])[3], byte_tokenizer())


def test_prompts_with_the_same_id_get_file_and_line_as_ids(tmp_path: Path) -> None:
    files = [tmp_path / folder / "p.jsonl" for folder in ("a", "b")]
    for path in files:
        path.parent.mkdir()
        path.write_text('{"prompt": "x"}\n{"prompt": "y", "id": "same"}\n')
    prompts = load_prompts([*files, files[0]])
    assert [prompt.id for prompt in prompts] == [f"{path}:{n}" for path in files for n in (1, 2)]


def test_only_a_line_feed_ends_a_prompt(tmp_path: Path) -> None:
    text = "one\u2028two\x85three"
    path = tmp_path / "separators.jsonl"
    path.write_text(
        json.dumps({"id": 1, "category": "x", "turns": [text]}, ensure_ascii=False) + "\n"
    )
    assert [prompt.text for prompt in load_prompts([path])] == [text]


def test_missing_and_empty_prompt_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"the prompts .* cannot be read"):
        load_prompts([tmp_path / "none.jsonl"])
    with pytest.raises(ConfigError, match=r"no such file\. Repeat --prompts for each file\."):
        load_prompts(["a.jsonl,b.jsonl"])
    (tmp_path / "a,b.jsonl").write_text('{"prompt": "x"}\n')
    assert len(load_prompts([tmp_path / "a,b.jsonl"])) == 1
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(ConfigError, match=r"empty\.jsonl: there are no prompts\. Add one"):
        load_prompts([tmp_path / "empty.jsonl"])


def test_a_long_prompt_keeps_its_first_four_and_last_tokens(tmp_path: Path) -> None:
    prompt = load_prompts([write_prompts(tmp_path / "a.jsonl")])[3]
    ids = encode(prompt, byte_tokenizer())
    cut = shortened(ids, 10)
    assert cut == ids[:4] + ids[-6:]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"drafters": ("nona",)}, "no drafter 'nona'.*'none'"),
        ({"baselines": ("transformer",)}, "did you mean|Did you mean"),
        ({"baselines": ("transformers:prompt_lookup=x",)}, "positive integer"),
        ({"batch": 0}, "batch: got 0"),
        ({"drafters": (), "baselines": ()}, "nothing to run"),
        ({"drafters": ("none", "none")}, "given twice"),
        ({"temperature": -1.0}, "temperature"),
        ({"repeats": 0}, "repeats"),
        ({"threads": 0}, "threads"),
        ({"max_new_tokens": 0}, "max_new_tokens: got 0; expected at least 1"),
    ],
)
def test_configurations_that_cannot_run_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        changed(BenchConfig(), **change)


def test_the_command_repeats_the_run() -> None:
    sampling = SamplingParams(max_new_tokens=64, ignore_eos=True)
    config = BenchConfig(
        drafters=("none", "draft_model:max_draft_tokens=4"), baselines=(), sampling=sampling
    )
    assert config.command() == (
        "paceline bench demo --drafter none --drafter draft_model:max_draft_tokens=4"
        " --baseline none --max-new-tokens 64 --ignore-eos"
    )


def test_given_prompts_keep_their_order(pair: Pair) -> None:
    config = BenchConfig(
        ModelOptions("tiny"), ("none",), (), sampling=SamplingParams(max_new_tokens=2), warmup=0
    )
    prompts = [Prompt("b", "x", "abc"), Prompt("a", "x", "abd")]
    result = run_bench(
        config, target=pair.target, tokenizer=byte_tokenizer(), prompts=prompts, progress=False
    )
    assert [row.prompt for call in result.calls for row in call.rows] == ["b", "a"]
