"""Test `paceline record`: outputs, interruptions, and readers of the file."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from paceline import LLM, SamplingParams, datastore, demo
from paceline.cli.loading import load_tokenizer
from paceline.datastore.fingerprint import fingerprint_of
from paceline.drafters import create
from paceline.errors import CapacityError, ConfigError, DatastoreError
from paceline.model.identity import model_identity
from paceline.recorded_answers.reading import read_answers, read_settings
from paceline.replay import replay
from paceline.replay.recorder import RecordingPrompt, RecordOptions, record_answers
from paceline.replay.traces import read_traces
from paceline.training.acceptance_head.recording import _COLUMNS as COLUMNS
from tests.support.cli import call
from tests.support.commands import start_command
from tests.support.recordings import record_pair
from tests.support.shared import Pair, interrupt

QUICK = {"limit": 6, "max-new-tokens": 12, "batch": 2, "dtype": "float32"}
SAMPLED = {"temperature": 0.8, "top-p": 0.9, "seed": 5}


def words_of(path: Path, options: dict[str, Any]) -> list[str]:
    named = QUICK | options
    model = named.pop("model", "demo")
    flags = (str(word) for name, value in named.items() for word in (f"--{name}", value))
    return ["record", str(model), "--out", str(path), *flags]


def record(path: Path, options: dict[str, Any] | None = None) -> Path:
    assert call(*words_of(path, options or {}))[0] == 0
    return path


@pytest.fixture(scope="module")
def plain() -> LLM:
    return LLM(demo.TARGET, "none", dtype="float32")


@pytest.mark.parametrize("options", [{}, SAMPLED], ids=["greedy", "sampled"])
def test_recorded_answers_equal_plain_decoding(
    tmp_path: Path, plain: LLM, options: dict[str, Any]
) -> None:
    path = record(tmp_path / "a.jsonl", options)
    answers = list(read_answers(path))
    lines = [json.loads(line) for line in demo.PROMPTS.read_text(encoding="utf-8").splitlines()[:6]]
    assert [(one.id, one.category) for one in answers] == [
        (line["id"], line["category"]) for line in lines
    ]
    expected = [
        plain.chat_prompt([{"role": "user", "content": line["turns"][0]}]) for line in lines
    ]
    assert [one.prompt_ids for one in answers] == expected
    for number, one in enumerate(answers):
        params = (
            SamplingParams(12, 0.8, top_p=0.9, seed=5 + number) if options else SamplingParams(12)
        )
        (want,) = plain.generate([one.prompt_ids], params)
        assert (one.output_ids, one.finish_reason) == (want.token_ids, want.finish_reason)


def test_the_file_states_its_settings(tmp_path: Path, plain: LLM) -> None:
    settings = read_settings(
        record(tmp_path / "a.jsonl", SAMPLED | {"drafter": "prompt_lookup:max_draft_tokens=3"})
    )
    assert settings is not None
    assert settings["model"] == "demo"
    assert settings["model_fingerprint"] == model_identity(plain.model.model)[0]
    assert settings["tokenizer"] == fingerprint_of(plain.tokenizer)
    assert (settings["dtype"], settings["drafter"], settings["count"]) == (
        "float32",
        "prompt_lookup:max_draft_tokens=3",
        6,
    )
    assert SamplingParams(**settings["sampling"]) == SamplingParams(12, 0.8, top_p=0.9, seed=5)


def test_a_killed_run_resumes_to_the_same_bytes(tmp_path: Path) -> None:
    options = SAMPLED | {"limit": 10}
    whole, path = record(tmp_path / "whole.jsonl", options), tmp_path / "killed.jsonl"
    rng, kills = random.Random(0), 0
    for _ in range(2):
        before = path.stat().st_size if path.exists() else 0
        process = start_command("paceline", *words_of(path, options))
        deadline = time.monotonic() + 60
        while process.is_alive() and time.monotonic() < deadline:
            if path.exists() and path.stat().st_size > before:
                time.sleep(rng.random() * 0.05)
                process.kill()
                kills += 1
                break
            time.sleep(0.002)
        process.join()
        assert whole.read_bytes().startswith(path.read_bytes())
    assert kills
    record(path, options)
    assert path.read_bytes() == whole.read_bytes()


def test_interrupted_and_finished_runs_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.jsonl"
    with monkeypatch.context() as patch:
        interrupt(patch, 3)
        with pytest.raises(KeyboardInterrupt):
            record(path)
    assert (
        "holds the finished batches; run the same command again to resume"
        in capsys.readouterr().err
    )
    assert len(path.read_bytes().splitlines()) == 1 + 4
    record(path)
    assert "6 answers, 4 of them recorded earlier; " in capsys.readouterr().err
    monkeypatch.setattr(LLM, "generate", None)
    record(path)
    assert "is finished: all 6 answers exist" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"temperature": 0.5},
            r"--temperature: got 0\.5; expected 0\.0, as at the start of the file",
        ),
        ({"max-new-tokens": 13}, "--max-new-tokens: got 13; expected 12"),
        ({"limit": 5}, r"contains answers to other prompts \(6, not 5\)\. Name another file"),
        ({"every": 2}, "contains answers to other prompts"),
        ({"dtype": "bfloat16"}, "--dtype: got 'bfloat16'; expected 'float32'"),
        ({"drafter": "none"}, "--drafter: got 'none'; expected 'prompt_lookup'"),
        ({"model": demo.DRAFT}, "contains answers from another model"),
        ({"batch": 3}, "--batch: got 3; expected 2"),
        ({"batch": 0}, "--batch: got 0; expected at least 1"),
        ({"max-new-tokens": 100000}, r"leaves -\d+ for prompts"),
    ],
)
def test_resuming_with_other_settings_is_refused(
    tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    path = record(tmp_path / "a.jsonl")
    before = path.read_bytes()
    with pytest.raises((ConfigError, CapacityError), match=message):
        record(path, options)
    assert path.read_bytes() == before


def test_long_prompts_keep_their_beginning_and_end(tmp_path: Path, plain: LLM) -> None:
    text = " ".join(map(str, range(4000)))
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(json.dumps({"id": "long", "category": "x", "turns": [text]}))
    (answer,) = read_answers(record(tmp_path / "a.jsonl", {"prompts": prompts}))
    ids = plain.chat_prompt([{"role": "user", "content": text}])
    length = plain.max_length - 12
    assert len(ids) > length
    assert answer.prompt_ids == ids[:4] + ids[4 - length :]


def test_recording_needs_no_tokenizer(tmp_path: Path, pair: Pair) -> None:
    questions = [
        RecordingPrompt(str(number), "x", prompt) for number, prompt in enumerate(pair.prompts)
    ]
    made = record_answers(
        tmp_path / "a.jsonl",
        pair.engine(),
        questions,
        SamplingParams(40, ignore_eos=True),
        RecordOptions(batch=3),
    )
    assert (made.count, made.new, made.tokens) == (
        len(questions),
        len(questions),
        40 * len(questions),
    )
    assert [output for _, output in read_traces(tmp_path / "a.jsonl")] == pair.answers
    with pytest.raises(ConfigError, match="got no prompt"):
        record_answers(tmp_path / "b.jsonl", pair.engine(), [], SamplingParams())
    assert not (tmp_path / "b.jsonl").exists()


@pytest.mark.parametrize(
    "spec", ["prompt_lookup:budget=false,max_frequent_tokens=16", "sssd"]
)  # a replay verifies all proposals, so there is no budget
def test_a_replay_counts_the_same_as_decoding(tmp_path: Path, pair: Pair, spec: str) -> None:
    questions = [
        RecordingPrompt(str(number), "x", prompt) for number, prompt in enumerate(pair.prompts)
    ]
    params = SamplingParams(40, ignore_eos=True)
    record_answers(tmp_path / "a.jsonl", pair.engine(), questions, params, RecordOptions(batch=1))
    llm = pair.engine(spec, max_nodes=6)
    replayed = replay(create(spec), read_traces(tmp_path / "a.jsonl"), 6)
    stats = [answer.stats for prompt in pair.prompts for answer in llm.generate([prompt], params)]
    assert replayed.tokens == sum(one.new_tokens for one in stats)
    assert replayed.accepted == sum(one.accepted_tokens for one in stats) > 0
    assert replayed.steps == sum(one.target_forwards for one in stats)


def test_stores_are_built_from_recorded_answers(tmp_path: Path) -> None:
    path = record(tmp_path / "a.jsonl")
    answers = list(read_answers(path))
    assert call("datastore", "build", tmp_path / "store", path, "--tokenizer", "demo")[0] == 0
    assert (
        call("datastore", "add", tmp_path / "store", path, "--tokenizer", "demo", "--answers-only")[
            0
        ]
        == 0
    )
    found = datastore.info(tmp_path / "store")
    assert found.tokens == sum(len(one.prompt_ids) + 2 * len(one.output_ids) for one in answers)


def test_a_store_of_another_tokenizer_is_refused(
    tmp_path: Path,
) -> None:
    record(tmp_path / "a.jsonl")
    other = load_tokenizer("demo")
    other.add_tokens(["<another>"])
    datastore.build(tmp_path / "store", [[1, 2, 3]], 5000, tokenizer=other)
    with pytest.raises(DatastoreError, match="got the tokenizer"):
        call("replay", tmp_path / "a.jsonl", "--datastore", tmp_path / "store")


def test_a_missing_folder_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "none" / "a.jsonl"
    with pytest.raises(ConfigError, match=r"there is no folder .*none'\. Create it first"):
        record(path)
    assert not path.parent.exists()


def test_recorded_answers_give_the_same_head_recording(tmp_path: Path) -> None:
    path = record(tmp_path / "a.jsonl")
    own, recorded = record_pair(tmp_path / "own"), record_pair(tmp_path / "recorded", answers=path)
    assert recorded.prompt_ids == own.prompt_ids
    for name in COLUMNS:
        assert torch.equal(getattr(recorded, name), getattr(own, name))
    assert recorded.settings.keys() - own.settings.keys() == {"answers"}
    every, rest = (
        record_pair(tmp_path / name, answers=path, limit=0, **{name: 4})
        for name in ("every", "skip_every")
    )
    assert (len(every.names), len(rest.names)) == (2, 4)
    sampled = record(tmp_path / "b.jsonl", SAMPLED)
    assert record_pair(tmp_path / "sampled", answers=sampled).settings["temperature"] == 0.8
    with pytest.raises(ConfigError, match=r"temperature: got 0\.5; expected 0\.8, with which"):
        record_pair(tmp_path / "x", answers=sampled, temperature=0.5)
    with pytest.raises(ConfigError, match="got both answers and prompts"):
        record_pair(tmp_path / "x", answers=sampled, prompts=(str(demo.PROMPTS),))
    with pytest.raises(ConfigError, match=r"got answers of 'demo' .* expected those of the target"):
        record_pair(
            tmp_path / "x", answers=sampled, model=str(demo.DRAFT), draft_model=str(demo.DRAFT)
        )
    with pytest.raises(ConfigError, match=r"repetition_penalty: got 1\.1"):
        record_pair(
            tmp_path / "x", answers=record(tmp_path / "c.jsonl", {"repetition-penalty": 1.1})
        )
    assert not (tmp_path / "x").exists()
