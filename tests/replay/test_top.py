"""Test recorded top tokens: files, resumed runs, damage and replays."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from paceline import DraftTree, SamplingParams, ScriptedDrafter
from paceline.core.drafter import TopTokens
from paceline.drafters import create
from paceline.errors import ConfigError
from paceline.recorded_answers.reading import read_answers, read_tops
from paceline.recorded_answers.top_tokens import top_path
from paceline.replay import replay
from paceline.replay.recorder import RecordingPrompt, RecordOptions, record_answers
from paceline.replay.traces import read_top_tokens, read_traces
from tests.support.cli import call
from tests.support.shared import Pair, interrupt

TOKENS = 16


def record(
    path: Path, pair: Pair, spec: str = "prompt_lookup", top: int = 8, temperature: float = 0.0
) -> Path:
    questions = [
        RecordingPrompt(str(number), "x", prompt) for number, prompt in enumerate(pair.prompts[:5])
    ]
    params = SamplingParams(TOKENS, temperature, ignore_eos=True)
    record_answers(
        path, pair.engine(spec, max_nodes=6), questions, params, RecordOptions(batch=2, top=top)
    )
    return path


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_recorded_top_tokens_equal_a_plain_forward(
    pair: Pair, tmp_path: Path, temperature: float
) -> None:
    """Check the top-k rows of recordings made with a drafter."""
    path = record(tmp_path / "a.jsonl", pair, temperature=temperature)
    tops = read_tops(path)
    assert tops is not None
    for answer, rows in zip(read_answers(path), tops, strict=True):
        assert rows.token_ids.shape == rows.log_probs.shape == (TOKENS, 8)
        ids = torch.tensor([answer.prompt_ids + answer.output_ids])
        with torch.inference_mode():
            plain = (
                pair.target(ids).logits[0, len(answer.prompt_ids) - 1 : -1].float().log_softmax(-1)
            )
        best = plain.topk(8)
        assert np.allclose(rows.log_probs, best.values, atol=2e-2)
        assert np.allclose(
            plain.gather(1, torch.from_numpy(rows.token_ids)), rows.log_probs, atol=2e-2
        )
        assert temperature or rows.token_ids[:, 0].tolist() == answer.output_ids


def test_top_tokens_do_not_change_the_answers(pair: Pair, tmp_path: Path) -> None:
    with_top, without = (
        record(tmp_path / "a.jsonl", pair),
        record(tmp_path / "b.jsonl", pair, top=0),
    )
    assert list(read_answers(with_top)) == list(read_answers(without))
    assert not top_path(without).exists()
    assert read_tops(without) is None
    assert "top" not in json.loads(without.read_text().partition("\n")[0])
    with pytest.raises(ConfigError, match="top: got None; expected 8, as at the start of the file"):
        record(with_top, pair, top=0)


def test_interrupted_run_resumes_to_the_same_bytes(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    complete, path = record(tmp_path / "complete.jsonl", pair), tmp_path / "cut.jsonl"
    with monkeypatch.context() as patch:
        interrupt(patch, 2)
        with pytest.raises(KeyboardInterrupt):
            record(path, pair)
    with top_path(path).open("ab") as file:
        file.write(b"what a kill left between both files")
    assert len(path.read_bytes().splitlines()) == 3
    record(path, pair)
    assert path.read_bytes() == complete.read_bytes()
    assert top_path(path).read_bytes() == top_path(complete).read_bytes()


def test_any_changed_byte_is_refused(pair: Pair, tmp_path: Path) -> None:
    path = record(tmp_path / "a.jsonl", pair)
    complete = top_path(path).read_bytes()
    for index in [*range(0, len(complete), 37), len(complete) - 1]:
        changed = bytearray(complete)
        changed[index] ^= 1
        top_path(path).write_bytes(changed)
        with pytest.raises(ConfigError, match=r"a\.jsonl\.top.*Delete both"):
            list(read_tops(path) or ())
    for other in (complete[:-1], b"notes", b""):
        top_path(path).write_bytes(other)
        with pytest.raises(ConfigError, match="got a file that cannot be used"):
            record(path, pair)
        assert top_path(path).read_bytes() == other
    top_path(path).unlink()
    with pytest.raises(ConfigError, match="No such file"):
        read_top_tokens(path)
    top_path(path).write_bytes(
        top_path(record(tmp_path / "b.jsonl", pair, temperature=1.0)).read_bytes()
    )
    with pytest.raises(ConfigError, match="or belongs to other answers"):
        read_top_tokens(path)


class TopTokenScript(ScriptedDrafter):
    """Scripted drafter that requests the target's two most likely tokens."""

    top_k = 2


def test_replay_reports_only_known_top_tokens() -> None:
    drafter = TopTokenScript(
        [
            DraftTree([5, 1, 2, 9], [-1, -1, 1, 2]),
            DraftTree([7], [-1]),
            DraftTree([5, 6, 7], [-1, 0, 1]),
        ]
    )
    token_ids = np.array([[position + 1, 10 + position] for position in range(6)])
    probs = np.array([[0.5 + position / 100, 0.25] for position in range(6)], dtype=np.float32)
    replay(drafter, [([0], [1, 2, 3, 4, 5, 6])], top_tokens=[TopTokens(token_ids, probs)])
    # positions of the answer at root and nodes
    known = [[0, None, 1, 2, None], [3, None], [4, 5, None, None]]
    for outcome, positions in zip(drafter.outcomes, known, strict=True):
        top = outcome.target_top
        assert top is not None
        for row, position in enumerate(positions):
            wanted = (
                (token_ids[position].tolist(), probs[position].tolist())
                if position is not None
                else ([0, 0], [0.0, 0.0])
            )
            assert (top.token_ids[row].tolist(), top.probs[row].tolist()) == wanted


@pytest.mark.parametrize("spec", ["token_recycling", "token_recycling:max_context_ngram=1", "auto"])
def test_drafters_learn_from_top_tokens(pair: Pair, tmp_path: Path, spec: str) -> None:
    path = record(tmp_path / "a.jsonl", pair)
    traces, top_tokens = read_traces(path), read_top_tokens(path)
    assert top_tokens is not None
    result = replay(create(spec), traces, 8, top_tokens=top_tokens)
    nothing = [TopTokens(top.token_ids, np.zeros_like(top.probs)) for top in top_tokens]
    without = replay(create(spec), traces, 8, top_tokens=nothing)
    assert result.drafted > without.drafted
    assert result.tokens_per_step >= without.tokens_per_step
    assert spec == "auto" or result.tokens_per_step > without.tokens_per_step, (
        "which has nothing else"
    )
    assert (
        replay(create(spec), traces, 8, top_tokens=top_tokens, batch_size=1).accepted
        == result.accepted
    )


def test_drafters_that_need_top_tokens_are_refused_without(pair: Pair, tmp_path: Path) -> None:
    path = record(tmp_path / "a.jsonl", pair, top=4)
    bare = record(tmp_path / "b.jsonl", pair, top=0)
    for name, recorded in ((path, 4), (bare, 0)):
        with pytest.raises(
            ConfigError,
            match=f"drafter 'auto' learns .* but {recorded} of them were recorded.*--top 8",
        ):
            call("replay", name, "--drafters", "auto", "--nodes", "4")
        assert call("replay", name, "--drafters", "sssd", "--nodes", "4")[0] == 0
    with pytest.raises(ConfigError, match="top: got 65; expected from 0 to 64"):
        call("record", "--out", tmp_path / "c.jsonl", "--top", "65", "--limit", "1", "-n", "4")
