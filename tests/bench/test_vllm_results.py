"""Test the results table of runs inside vLLM (`scripts/vllm_results.py`)."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
import torch

from paceline.bench.environment import look_around

ROOT = Path(__file__).parents[2]


@pytest.fixture
def results(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(ROOT / "scripts")
    return importlib.import_module("vllm_results")


def rows(results: Any, *figures: tuple[str, str, int, float]) -> list[list[str]]:
    """Return the table of runs: method, prompt file, accepted tokens, processor time."""
    runs = [
        results.VllmRun(method, file, 2, 22, 2 * accepted, accepted, 9.0, processor, 0, 2)
        for method, file, accepted, processor in figures
    ]
    environment = look_around(torch.device("cpu"))
    result = results.VllmResult("tiny", "0.32.0", "float32", 2, 8, 11, environment, runs)
    lines = [line for line in results.vllm_table(result).splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_methods_are_compared_with_plain_decoding(results: Any) -> None:
    table = rows(
        results,
        ("none", "a", 0, 2.0),
        ("none", "b", 0, 2.0),
        ("ours", "a", 10, 1.0),
        ("ours", "b", 0, 1.0),
    )
    assert table[0][-1] == "equal"
    assert table[2:] == [
        ["none", "0.00", "0.00", "0.00", "1.00", "4 of 4"],
        ["ours", "1.00", "0.00", "0.67", "2.00", "4 of 4"],
    ]


def test_turns_are_compared_with_their_own_plain_decoding(results: Any) -> None:
    turns = [(1.0, 1.0), (2.0, 1.0), (4.0, 5.0)]
    table = rows(
        results,
        *(
            run
            for plain, drafted in turns
            for run in (("none", "a", 0, plain), ("ours", "a", 5, drafted))
        ),
    )
    assert table[0][-2] == "tokens/s over none, median of 3 turns"
    assert table[2][-2:] == ["1.00 (1.00 to 1.00)", "6 of 6"]
    assert table[3] == ["ours", "0.33", "0.67", "1.00 (0.80 to 2.00)", "6 of 6"]
