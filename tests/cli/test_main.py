"""Test the `paceline` command: outputs, wrong arguments, Ctrl-C and files."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from paceline import demo
from paceline.cli.main import main
from tests.support.cli import usage_error
from tests.support.commands import run_command

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200"}


def paceline(*words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return run_command("paceline", *words, stdin=stdin)


def test_generate_gives_the_same_text_with_every_drafter() -> None:
    texts = set()
    for drafter in ("none", "prompt_lookup:max_draft_tokens=4", "draft_model:max_draft_tokens=3"):
        done = paceline(
            "generate",
            "demo",
            "def add(a, b):",
            "--chat",
            "-n",
            "24",
            "--drafter",
            drafter,
            "--dtype",
            "float32",
        )
        assert done.returncode == 0, done.stderr
        assert "tokens per forward" in done.stderr
        assert "batch-invariant]" in done.stderr
        texts.add(done.stdout)
    assert len(texts) == 1


def test_generate_reads_standard_input_and_batches() -> None:
    done = paceline("generate", "demo", "-", "Count to three.", "-n", "8", stdin="The first prompt")
    assert done.returncode == 0, done.stderr
    assert "The first prompt" in done.stdout
    assert done.stderr.count("tokens/s") == 2


def test_chat_responds_and_quits() -> None:
    done = paceline("chat", "-n", "12", stdin="What is 2 + 3?\n/reset\nAnd 4 + 5?\n/quit\n")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("tokens per forward") == 2


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["generate", "demo", "x", "--drafter", "promt_lookup"], "Did you mean 'prompt_lookup'?"),
        (
            ["generate", "demo", "x", "--drafter", "prompt_lookup:max_draft_token=3"],
            "Did you mean 'max_draft_tokens'?",
        ),
        (["generate", "demo", "x", "-t", "-1"], "error: -t: got -1.0"),
        (["generate", "demo", "x", "--top-p", "2"], "error: --top-p: got 2.0"),
        (["generate", "demo", "x", "-n", "-1"], "error: -n: got -1"),
        (["generate", "demo", ""], "prompt 0: got no token; expected at least one"),
        (["generate", "no/such/folder", "x"], "cannot load"),
        (
            ["generate", str(demo.TARGET), "x", "--drafter", "draft_model"],
            "needs a draft model. Pass --draft-model DIR,",
        ),
        (["generate", "demo", "x", "--min-tokens", "200"], "from 0 to --max-new-tokens."),
        (["generate", "demo", "x", "--threads=0"], "error: --threads: got 0"),
        (["bench", "--limit", "-1"], "error: --limit: got -1"),
        (
            ["generate", "demo", "x", "--drafter", "auto:max_nodes=abc"],
            "error: auto: max_nodes: got 'abc'",
        ),
        (["generate", "demo", "--file", "/dev/null"], "/dev/null: there are no prompts. Add one"),
        (["bench", "--prompts", "/dev/null"], "/dev/null: there are no prompts. Add one"),
        (["drafters", "autoo"], "`paceline drafters` takes no argument. Leave 'autoo' out."),
        (["verify", "--drafters", "none"], "compares plain decoding with itself"),
        (["serve"], "serve: MODEL is missing. Add it; see paceline serve --help."),
        (["draft", "train", "demo"], "draft train: --recording is missing. Add it"),
        (
            ["generate", "demo", "x", "--stop", "-x"],
            "--stop has no value. Add one; a value that begins with '-' is written --stop=VALUE.",
        ),
        (["generate", "demo", "-n"], "-n has no value. Add one;"),
        (["generate", "demo"], "no prompt was given. Add one after the model"),
        (
            ["generate", "demo", "x", "--batch-invariant", "of"],
            "auto, on, off. Did you mean",
        ),
        (
            ["generate", "demo", "x", "--seed", "1", "--seed", "2"],
            "--seed is given twice.",
        ),
        (["chat", "demo", "hello"], "Unexpected argument 'hello'. Leave it out"),
        (["datastore", "bild"], "Did you mean build? See paceline datastore --help."),
        (["demo", "--small=maybe"], "--small: got 'maybe'; expected true or false."),
        (["genrate", "x"], "Did you mean generate?"),
        (["generate", "demo", "x", "--max-new-token", "3"], "Did you mean --max-new-tokens?"),
        (["generate", "demo", "x", "-n", "many"], "-n: got 'many'; expected an integer."),
        (["generate", "demo", "x", "--top-k", "2.5"], "--top-k: got '2.5'; expected an integer."),
        (["generate", "demo", "x", "--process-timeout", "0"], "error: --process-timeout: got 0"),
        (["bench", "--batch", "0"], "error: --batch: got 0"),
        (["bench", "--cost-scale", "big"], "WIDTHxLAYERS"),
        (["bench", "--prompts", "nowhere.jsonl"], "nowhere.jsonl"),
        (["bench", "--json", "no-such-folder/result.json"], "no-such-folder"),
        (["bench", "--markdown", "no-such-folder/result.md"], "no-such-folder"),
    ],
)
def test_wrong_arguments_are_one_clear_line(
    words: list[str],
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert expected in usage_error(words, monkeypatch, capsys)


def test_drafters_lists_the_registry(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["paceline", "drafters"])
    with pytest.raises(SystemExit):
        main()
    printed = capsys.readouterr().out
    assert all(name in printed for name in ("none", "prompt_lookup", "max_ngram=4", "draft_model"))


def test_bench_writes_its_files(tmp_path: Path) -> None:
    done = paceline(
        "bench",
        "--limit",
        "2",
        "-n",
        "8",
        "--drafters",
        "none,prompt_lookup:max_draft_tokens=4,max_ngram=2 draft_model",
        "--threads",
        "1",
        "--dtype",
        "float32",
        "--json",
        str(tmp_path / "r.json"),
        "--png",
        str(tmp_path / "r.png"),
        "--markdown",
        str(tmp_path / "r.md"),
    )
    assert done.returncode == 0, done.stderr
    assert "prompt_lookup:max_draft_tokens=4,max_ngram=2" in done.stdout
    assert json.loads((tmp_path / "r.json").read_text())["complete"] is True
    assert (tmp_path / "r.png").read_bytes().startswith(b"\x89PNG")
    assert "draft_model" in (tmp_path / "r.md").read_text()


def test_ctrl_c_ends_generate_quietly() -> None:
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "paceline",
            "generate",
            "demo",
            "Once",
            "-n",
            "1900",
            "--ignore-eos",
            "--drafter",
            "none",
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
        preexec_fn=lambda: signal.signal(
            signal.SIGINT, signal.SIG_DFL
        ),  # a test suite in the background ignores the signal
    )
    assert process.stdout is not None
    process.stdout.read(1)  # wait for the first output
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert "stopped" in errors
    assert "Traceback" not in errors
    assert process.returncode == 130
