"""Test `--lookahead-parallel`: only rank 0 prints, and all processes end together."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from pathlib import Path

import pytest

from paceline.bench import read_json, run_bench
from paceline.cli.main import main
from paceline.util.options import changed
from tests.support.processes import Group, command

WINDOW = "lookahead:window=15,ngram=5,guesses=15,budget=false"


def generate(*words: str) -> tuple[str, ...]:
    return "generate", "demo", "def fib(n):", "--ignore-eos", "--lookahead-parallel", *words


def test_only_rank_0_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = generate("-n", "24", "--dtype", "float32", "--drafter", WINDOW)
    group = Group(2, tmp_path, command, *words)
    assert group.wait() == [0, 0], group.errors()
    assert group.printed(1) == ""
    assert len(group.errors()) == 1  # the line of statistics
    monkeypatch.setattr(
        sys, "argv", ["paceline", *(word for word in words if word != "--lookahead-parallel")]
    )
    with pytest.raises(SystemExit):
        main()
    assert capsys.readouterr().out == group.printed(0)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (generate("--drafter", "lookahead:window=2"), "got 3 ranks .* expected 1 to 2 ranks"),
        (
            generate("--drafter", "prompt_lookup"),
            "trees cannot be split among processes",
        ),
        (generate("--drafter", WINDOW, "-t", "-1"), "-t: got -1.0"),
        (("generate", "demo", "-", "--lookahead-parallel"), "only one of the processes could"),
        (
            ("bench", "--drafter", "none", "--lookahead-parallel"),
            "none of the drafters none has a window",
        ),
    ],
)
def test_a_common_mistake_is_reported_once(
    tmp_path: Path, words: tuple[str, ...], message: str
) -> None:
    group = Group(3, tmp_path, command, *words)
    assert group.wait() == [2, 2, 2], group.errors()
    (line,) = group.errors()
    assert re.search(message, line)


def test_a_single_process_gets_advice_on_torchrun(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["paceline", *generate("--drafter", WINDOW)])
    monkeypatch.setenv("COLUMNS", "500")
    with pytest.raises(SystemExit) as status:
        main()
    assert status.value.code == 2
    assert "torchrun --nproc-per-node K -m paceline" in capsys.readouterr().err


def start_endless(folder: Path, ranks: int, *words: str) -> Group:
    """Start a long generation, and wait for its first output."""
    group = Group(ranks, folder, command, *generate("-n", "1900", "--drafter", WINDOW, *words))
    give_up = time.monotonic() + 180
    while not (folder / "0.out").exists() or not group.printed(0):
        assert time.monotonic() < give_up, group.errors()
        time.sleep(0.02)
    return group


@pytest.mark.parametrize(("end", "patience"), [(signal.SIGKILL, "60"), (signal.SIGSTOP, "5")])
def test_a_lost_process_ends_the_others(tmp_path: Path, end: signal.Signals, patience: str) -> None:
    """A killed process ends the others at once, a stopped one after the timeout."""
    group = start_endless(tmp_path, 3, "--process-timeout", patience)
    os.kill(group.processes[1].pid or 0, end)
    for rank in (0, 2):
        group.processes[rank].join(50)  # less than the timeout after a killed process
    assert [group.processes[rank].exitcode for rank in (0, 2)] == [2, 2]
    group.wait(0)
    assert (
        1 <= len(group.errors()) <= 2
    )  # a second line if rank 0 ended before it could note the first
    message = f"error: a process of this parallel run ended or did not answer within {patience} s"
    assert all(line.startswith(message) for line in group.errors())


def test_ctrl_c_in_one_process_ends_all_quietly(tmp_path: Path) -> None:
    group = start_endless(tmp_path, 2)
    os.kill(group.processes[1].pid or 0, signal.SIGINT)
    assert group.wait() == [130, 130]
    assert group.errors() == ["stopped"]


def test_bench_in_parallel(tmp_path: Path) -> None:
    """Check that rank 0 decides when to stop, and that all methods have equal outputs.

    The number of verified tokens is that of the busiest rank.
    """
    words = [
        "bench",
        "--drafters",
        f"none {WINDOW}",
        "--baseline",
        "transformers",
        "-n",
        "24",
        "--dtype",
        "float32",
    ]
    words += ["--max-seconds", "0.001", "--json", str(tmp_path / "r.json"), "--lookahead-parallel"]
    group = Group(2, tmp_path, command, *words)
    assert group.wait() == [0, 0], group.errors()
    assert group.printed(1) == ""
    result = read_json(tmp_path / "r.json")
    assert result.complete
    assert len(result.calls) == 3
    assert all(figures.equal == figures.compared for figures in result.figures())
    assert result.config.lookahead_parallel == 2
    assert result.config.command().startswith("torchrun --nproc-per-node 2 -m paceline bench")
    alone = run_bench(changed(result.config, lookahead_parallel=0, limit=1), progress=False)
    shared, whole = (one.figures()[2].fed_per_step for one in (result, alone))
    assert shared is not None
    assert whole is not None
    assert 0.4 * whole < shared < 0.7 * whole
