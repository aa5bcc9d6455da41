"""Test recordings, which acceptance heads are trained on."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from paceline import SamplingParams, demo
from paceline.errors import CapacityError, ConfigError
from paceline.training.acceptance_head.recording import prompt_name, read_recording
from paceline.training.acceptance_head.teacher_forcing import (
    AnsweredPrompts,
    run_from,
    teacher_force,
)
from tests.support.cli import call
from tests.support.commands import start_command
from tests.support.recordings import record_pair
from tests.support.shared import Pair, reference


def next_scores(model: Any, prefix: list[int], params: SamplingParams) -> Tensor:
    """Return log-probabilities after `prefix` from a plain forward pass, [vocab]."""
    with torch.inference_mode():
        logits = model(torch.tensor([prefix])).logits[0, -1].double()
    if params.greedy:
        return torch.log_softmax(logits, -1)
    probs = (logits / params.temperature).softmax(-1)
    order = probs.argsort(descending=True)
    before = probs[order].cumsum(0) - probs[order]
    mask = torch.zeros_like(probs)
    mask[order[before < params.top_p]] = 1
    return torch.log(probs * mask / (probs * mask).sum())


@pytest.mark.parametrize(
    "params",
    [SamplingParams(), SamplingParams(temperature=0.8, top_p=0.9)],
    ids=["greedy", "sampled"],
)
@pytest.mark.parametrize("keep", [0.0, 0.6])
def test_recording_equals_plain_forwards(pair: Pair, params: SamplingParams, keep: float) -> None:
    prompts = [pair.prompts[0][:7], pair.prompts[1][:12]]
    answers = [
        reference(pair.target, prompt, count) for prompt, count in zip(prompts, (9, 5), strict=True)
    ]
    drawn = []

    def record_run(*arguments: Any) -> Any:
        drawn.append(run_from(*arguments))
        texts.append([list(text) for text in arguments[1]])
        return drawn[-1]

    texts: list[list[list[int]]] = []
    with pytest.MonkeyPatch.context() as patch, torch.inference_mode():
        patch.setattr("paceline.training.acceptance_head.teacher_forcing.run_from", record_run)
        got = teacher_force(
            pair.target,
            pair.draft,
            AnsweredPrompts(prompts, answers, params),
            keep,
            1,
            torch.Generator().manual_seed(3),
        )
    assert len(texts) == (2 if params.greedy else 3)  # the target's greedy tokens are known
    assert (
        texts[0]
        == texts[-2]
        == [prompt + answer for prompt, answer in zip(prompts, answers, strict=True)]
    )
    at = 0
    for row, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
        mixed = texts[-1][row]
        mask = [int(number) == row for number in got["prompts"]]
        assert sum(mask) <= len(answer)
        for i in range(len(answer)):
            prefix = prompt + answer[:i]
            token = mixed[len(prefix)]
            draft, target = (
                next_scores(model, prefix, params) for model in (pair.draft, pair.target)
            )
            if at >= len(got["labels"]) or int(got["prompts"][at]) != row:
                assert token == answer[i]
                continue
            with torch.inference_mode():
                states = pair.draft.model(
                    torch.tensor([mixed[: len(prefix) + 1]])
                ).last_hidden_state[0, -1]
            if not torch.allclose(states, got["hidden"][at], atol=1e-4):
                assert token == answer[i]  # kept from the answer, so not recorded
                continue
            label = (
                float(target.argmax() == token)
                if params.greedy
                else float((target[token] - draft[token]).exp().clamp(max=1))
            )
            assert float(got["labels"][at]) == pytest.approx(label, abs=1e-3)
            assert float(got["log_probs"][at]) == pytest.approx(float(draft[token]), abs=1e-3)
            assert float(got["entropies"][at]) == pytest.approx(
                float(torch.special.entr(draft.exp()).sum()), abs=1e-3
            )
            assert float(got["top_probs"][at]) == pytest.approx(float(draft.max().exp()), abs=1e-3)
            if params.greedy:
                assert token == int(draft.argmax())
            at += 1
    assert at == len(got["labels"])
    if keep == 0:
        assert at == sum(map(len, answers))


def test_drafted_tokens_follow_the_drafts_distribution(pair: Pair) -> None:
    params, prompt, answer = (
        SamplingParams(temperature=1.0, top_p=0.6),
        pair.prompts[0][:6],
        pair.answers[0][:1],
    )
    want = next_scores(pair.draft, prompt, params).exp()
    generator = torch.Generator().manual_seed(0)
    with torch.inference_mode():
        answered = AnsweredPrompts([prompt] * 400, [answer] * 400, params)
        got = teacher_force(pair.target, pair.draft, answered, 0.0, 1, generator)
    assert float(got["log_probs"].exp().min()) > 0
    for probability in want[want > 0.05].tolist():
        share = float((got["log_probs"].exp() - probability).abs().lt(1e-4).float().mean())
        assert share == pytest.approx(probability, abs=0.08)


def test_mixture_keeps_its_share_of_the_answer(tmp_path: Path) -> None:
    recording = record_pair(tmp_path / "half", keep=0.5, mixtures=4)
    complete = record_pair(tmp_path / "none", keep=0.0)
    assert len(recording) == pytest.approx(2 * len(complete), rel=0.2)
    assert recording.names == complete.names == [prompt_name(ids) for ids in recording.prompt_ids]
    assert recording.hidden.dtype == torch.bfloat16
    assert set(recording.labels.tolist()) <= {0.0, 1.0}
    sampled = record_pair(tmp_path / "sampled", temperature=1.0, keep=0.0)
    assert bool(((sampled.labels > 0) & (sampled.labels < 1)).any())


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_killed_recording_resumes(tmp_path: Path) -> None:
    complete = tmp_path / "whole"
    record_pair(complete, limit=10, temperature=0.7, seed=4)
    killed = tmp_path / "killed"
    words = ["paceline", "head", "record", "--out", str(killed), "--limit", "10", "-n", "12",
             "--batch", "2", "-t", "0.7", "--seed", "4", "--dtype", "float32"]  # fmt: skip
    rng, kills = random.Random(0), 0
    for _ in range(3):
        before = len(list(killed.glob("shard-*.safetensors")))
        process = start_command(*words)
        deadline = time.monotonic() + 60
        while process.is_alive() and time.monotonic() < deadline:
            if len(list(killed.glob("shard-*.safetensors"))) > before:
                time.sleep(rng.random() * 0.05)
                process.kill()
                kills += 1
                break
            time.sleep(0.002)
        process.join()
        written = contents(killed)
        assert all(
            written[name] == content
            for name, content in contents(complete).items()
            if name in written
        )
    assert kills
    (killed / "shard-00000.safetensorsabc.tmp").write_bytes(b"half")
    if not (killed / "shard-00004.safetensors").exists():
        with pytest.raises(ConfigError, match="of its 5 shards; expected all"):
            read_recording(killed)
    record_pair(killed, limit=10, temperature=0.7, seed=4)
    assert contents(killed) == contents(complete)


def test_folder_with_other_settings_is_refused(tmp_path: Path) -> None:
    record_pair(tmp_path / "one", limit=2)
    with pytest.raises(
        ConfigError, match=r"temperature: got 0\.5; expected 0\.0, as at the start of the run"
    ):
        record_pair(tmp_path / "one", limit=2, temperature=0.5)
    with pytest.raises(
        ConfigError, match=r"(prompts|batches): got .*; expected .*, as at the start of the run"
    ):
        record_pair(tmp_path / "one", limit=4)
    (tmp_path / "one" / "record.json").unlink()
    with pytest.raises(ConfigError, match=r"got shards but no record\.json"):
        record_pair(tmp_path / "one", limit=2)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_recording(tmp_path / "two")


def test_damaged_recording_is_refused_by_file_name(tmp_path: Path) -> None:
    record_pair(tmp_path, limit=4)
    shard = tmp_path / "shard-00001.safetensors"
    shard.write_bytes(shard.read_bytes()[:-5])
    with pytest.raises(
        ConfigError, match=r"shard-00001\.safetensors', which cannot be read.*Delete that file"
    ):
        read_recording(tmp_path)
    shard.unlink()
    assert len(record_pair(tmp_path, limit=4)) > 0
    (tmp_path / "record.json").write_text("{}")
    with pytest.raises(ConfigError, match="Record again"):
        read_recording(tmp_path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"keep": 1.0}, "got keep=1.0; expected at least 0 and less than 1"),
        ({"batch": 0}, "batch: got 0"),
        ({"mixtures": 0}, "mixtures: got 0"),
        ({"temperature": -1.0}, "temperature: got -1.0"),
        ({"skip_every": 1}, "which leaves no prompt"),
        ({"max_new_tokens": 4000}, "leaves -"),
        ({"max_new_tokens": 0}, "max_new_tokens: got 0; expected at least 1"),
        ({"model": str(demo.TARGET)}, "got no draft model; expected one to record"),
    ],
)
def test_invalid_recording_options_are_refused(
    tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises((ConfigError, CapacityError), match=message):
        record_pair(tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_every_and_skip_every_divide_the_prompts(tmp_path: Path) -> None:
    every = record_pair(tmp_path / "every", limit=0, every=4, max_new_tokens=2)
    rest = record_pair(tmp_path / "rest", limit=0, skip_every=4, max_new_tokens=2)
    count = len(demo.PROMPTS.read_text().splitlines())
    assert len(every.names) + len(rest.names) == count
    assert not set(every.names) & set(rest.names)


def test_cut_prompts_are_counted(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    prompts = tmp_path / "prompts.jsonl"
    lines = [
        json.dumps({"id": count, "category": "c", "turns": ["a word " * count]})
        for count in (3, 4000, 5000)
    ]
    prompts.write_text("\n".join(lines))
    words = ["--prompts", str(prompts), "-n", "2", "--batch", "1", "--dtype", "float32"]
    assert call("head", "record", "--out", tmp_path / "made", *words)[0] == 0
    assert "2 prompts were shortened to leave room for an answer" in capfd.readouterr().err
    recording = read_recording(tmp_path / "made")
    assert recording.settings["cut"] == 2
    assert sorted(map(len, recording.prompt_ids))[1:] == [demo_context() - 2] * 2
    assert call("head", "record", "--out", tmp_path / "whole", *words, "--limit", "1")[0] == 0
    assert "were shortened" not in capfd.readouterr().err
    assert "cut" not in read_recording(tmp_path / "whole").settings


def demo_context() -> int:
    """Return the shorter of the embedded models' contexts, in tokens."""
    configs = (
        json.loads((folder / "config.json").read_text()) for folder in (demo.TARGET, demo.DRAFT)
    )
    return int(min(config["max_position_embeddings"] for config in configs))


def test_shards_contain_only_tensors(tmp_path: Path) -> None:
    record_pair(tmp_path)
    assert set(load_file(tmp_path / "shard-00000.safetensors")) == {
        "hidden",
        "log_probs",
        "entropies",
        "labels",
        "top_probs",
        "prompts",
    }
