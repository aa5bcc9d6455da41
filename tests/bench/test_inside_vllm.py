"""Test the table of a run inside vLLM."""

from __future__ import annotations

import torch

from paceline.bench.environment import look_around
from paceline.bench.inside_vllm import VllmResult, VllmRun, vllm_table


def part(method: str, file: str, accepted: int, processor: float) -> VllmRun:
    return VllmRun(method, file, 2, 22, 2 * accepted, accepted, 9.0, processor, 0, 2)


def rows(*parts: VllmRun) -> list[list[str]]:
    result = VllmResult(
        "tiny", "0.32.0", "float32", 2, 8, 11, look_around(torch.device("cpu")), [*parts]
    )
    lines = [line for line in vllm_table(result).splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_methods_are_compared_with_plain_decoding() -> None:
    table = rows(
        part("none", "a", 0, 2.0),
        part("none", "b", 0, 2.0),
        part("ours", "a", 10, 1.0),
        part("ours", "b", 0, 1.0),
    )
    assert table[0][-1] == "equal"
    assert table[2:] == [
        ["none", "0.00", "0.00", "0.00", "1.00", "4 of 4"],
        ["ours", "1.00", "0.00", "0.67", "2.00", "4 of 4"],
    ]


def test_turns_are_compared_with_their_own_plain_decoding() -> None:
    turns = [(1.0, 1.0), (2.0, 1.0), (4.0, 5.0)]
    table = rows(
        *(
            run
            for plain, drafted in turns
            for run in (part("none", "a", 0, plain), part("ours", "a", 5, drafted))
        )
    )
    assert table[0][-2] == "tokens/s over none, median of 3 turns"
    assert table[2][-2:] == ["1.00 (1.00 to 1.00)", "6 of 6"]
    assert table[3] == ["ours", "0.33", "0.67", "1.00 (0.80 to 2.00)", "6 of 6"]
