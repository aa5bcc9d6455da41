"""Test replays with a scripted target, and the command."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from paceline import DraftTree, Outcome, ScriptedDrafter
from paceline.datastore.mistral import MISTRAL, MistralTokenizer
from paceline.drafters import create
from paceline.errors import ConfigError
from paceline.replay import Trace, replay
from paceline.replay.traces import read_traces
from tests.support.cli import call
from tests.support.stores import store


def some_traces(count: int = 6, seed: int = 0, vocab_size: int = 40) -> list[Trace]:
    """Return answers that quote their prompts, with wrong tokens in between."""
    rng = random.Random(seed)
    traces: list[Trace] = []
    for _ in range(count):
        prompt = [rng.randrange(vocab_size) for _ in range(30)]
        begins = [rng.randrange(20) for _ in range(6)]
        traces.append(
            (
                prompt,
                [
                    token
                    for begin in begins
                    for token in [*prompt[begin : begin + 8], rng.randrange(vocab_size)]
                ],
            )
        )
    return traces


def test_replay_by_hand() -> None:
    trees = [
        DraftTree([5, 1, 2, 9], [-1, -1, 1, 2]),  # 1 2 accepted, bonus 3
        DraftTree([7], [-1]),  # nothing accepted, bonus 4
        DraftTree([5, 6, 7], [-1, 0, 1]),  # 5 6 accepted: the answer ends
    ]
    drafter = ScriptedDrafter(trees)
    result = replay(drafter, [([0], [1, 2, 3, 4, 5, 6])])
    assert (result.tokens, result.steps, result.drafted, result.accepted) == (6, 3, 8, 4)
    assert result.tokens_per_step == 2.0
    assert result.drafted_per_step == 8 / 3
    assert [outcome.accepted for outcome in drafter.outcomes] == [[1, 2], [], [0, 1]]
    assert [outcome.new_token_ids for outcome in drafter.outcomes] == [[1, 2, 3], [4], [5, 6]]
    assert drafter.outcomes[0].target_argmax == [1, 2, 2, 3, 4]
    assert not drafter.open


@pytest.mark.parametrize("name", ["jacobi", "lookahead"])
def test_drafters_that_learn_from_predictions_are_refused(name: str, tmp_path: Path) -> None:
    """Recorded predictions would reveal the right token after a wrong draft token.

    Such a drafter would seem forty times as good as it is.
    """
    with pytest.raises(
        ConfigError, match=f"drafter '{name}' learns from the target's predictions.*paceline bench"
    ):
        replay(create(name), some_traces())


def test_plain_decoding_has_one_token_per_step() -> None:
    result = replay(create("none"), some_traces())
    assert result.tokens_per_step == 1.0
    assert result.drafted == 0


@pytest.mark.parametrize(
    "spec", ["prompt_lookup", "sssd:answer_cache_tokens=0", "sssd:fusion=paper"]
)
def test_batch_size_changes_no_counts(spec: str) -> None:
    single = replay(create(spec), some_traces(), 8)
    batch = replay(create(spec), some_traces(), 8, batch_size=5)
    assert (single.tokens, single.steps, single.drafted, single.accepted) == (
        batch.tokens,
        batch.steps,
        batch.drafted,
        batch.accepted,
    )
    assert single.tokens == sum(len(output) for _, output in some_traces())
    assert single.tokens_per_step > 1.5
    assert single.drafted_per_step <= 8
    assert single.microseconds_per_step > 0


def test_invalid_arguments_are_refused() -> None:
    with pytest.raises(ConfigError, match="batch_size: got 0"):
        replay(create("none"), some_traces(), batch_size=0)
    with pytest.raises(ConfigError, match="empty prompt"):
        replay(create("none"), [([], [1])])
    assert replay(create("none"), [([1], [])]).steps == 0


def test_drafter_error_leaves_no_state() -> None:
    class Failing(ScriptedDrafter):
        def observe(self, outcomes: Sequence[Outcome]) -> None:
            raise RuntimeError("broken")

    drafter = Failing([])
    with pytest.raises(RuntimeError, match="broken"):
        replay(drafter, some_traces(), batch_size=3)
    assert not drafter.open


def write_traces(path: Path, traces: Sequence[Trace]) -> Path:
    path.write_text(
        "".join(
            json.dumps({"prompt": list(prompt), "output": list(output)}) + "\n"
            for prompt, output in traces
        )
    )
    return path


def test_traces_are_read(tmp_path: Path) -> None:
    path = write_traces(tmp_path / "t.jsonl", some_traces())
    assert read_traces(path) == some_traces()
    assert read_traces(path, limit=2) == some_traces()[:2]
    for line, message in [
        ("{", "t.jsonl:1: it is not JSON"),
        ('{"prompt": "a"}', "prompt and output"),
        ('{"messages": [], "id": 1}', "t.jsonl:1: got a record of messages, id; expected prompt"),
        ('{"prompt": "a", "output": [1]}', "no tokenizer"),
        ('{"prompt": 3, "output": [1]}', "got int"),
        ("", "no record"),
    ]:
        path.write_text(line)
        with pytest.raises(ConfigError, match=message):
            read_traces(path)
    gone = "the traces 'nowhere.jsonl' cannot be read: No such file or directory. Check the path."
    with pytest.raises(ConfigError, match=f"^{gone}$"):
        read_traces("nowhere.jsonl")


def test_command(tmp_path: Path) -> None:
    path = write_traces(tmp_path / "t.jsonl", some_traces())
    folder = store(
        tmp_path / "store", [list(output) for _, output in some_traces(seed=1)], vocab_size=40
    )
    status, _ = call(
        "replay",
        path,
        "--datastore",
        folder,
        "--nodes",
        "4,8",
        "--batch",
        "1,2",
        "--json",
        tmp_path / "r.json",
        "--png",
        tmp_path / "r.png",
    )
    assert status == 0
    rows = json.loads((tmp_path / "r.json").read_text())["rows"]
    assert [
        (row["drafter"].partition(":")[0], row["max_nodes"], row["batch_size"]) for row in rows
    ] == [
        (name, nodes, batch)
        for name in ("prompt_lookup", "sssd")
        for nodes in (4, 8)
        for batch in (1, 2)
    ]
    assert all(row["tokens_per_step"] > 1 for row in rows)
    assert (tmp_path / "r.png").read_bytes().startswith(b"\x89PNG")
    for words, message in [
        (["--nodes", "x"], "whole numbers"),
        (["--drafters", "draft_model"], "needs one"),
    ]:
        with pytest.raises(ConfigError, match=message):
            call("replay", path, *words)


def test_each_row_starts_with_a_fresh_drafter(tmp_path: Path) -> None:
    """Check `pia`, which stores the answers it has seen."""
    path = write_traces(tmp_path / "t.jsonl", some_traces())
    words = [
        "replay",
        str(path),
        "--drafters",
        "pia",
        "--nodes",
        "8,8",
        "--json",
        str(tmp_path / "r.json"),
    ]
    assert call(*words)[0] == 0
    first, second = json.loads((tmp_path / "r.json").read_text())["rows"]
    assert first["tokens_per_step"] == second["tokens_per_step"]


def test_tokenizer_of_mistral_common() -> None:
    pytest.importorskip("mistral_common")
    pytest.importorskip("sentencepiece")
    tokenizer = MistralTokenizer()
    assert len(tokenizer.get_vocab()) == 32_000
    (ids,) = tokenizer(["def add(a, b):"])["input_ids"]
    assert tokenizer("def add(a, b):")["input_ids"] == ids
    assert MISTRAL == "mistral-common"
