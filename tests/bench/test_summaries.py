"""Test that summaries of results keep statistics and omit single timings."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

from paceline.bench import BenchConfig, ModelOptions, PromptOptions, run_bench, write_json
from paceline.report.documents import kind_of

ROOT = Path(__file__).parents[2]


@pytest.fixture
def summaries(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(ROOT / "scripts")
    return importlib.import_module("benchmark_summaries")


def test_a_summary_has_statistics_and_no_calls(summaries: Any, tmp_path: Path) -> None:
    config = BenchConfig(
        ModelOptions("demo", dtype="float32", threads=1),
        drafters=("none", "prompt_lookup"),
        baselines=(),
        selection=PromptOptions(limit=1),
        warmup=0,
    )
    full, short = tmp_path / "full.json", tmp_path / "short.json"
    write_json(run_bench(config, progress=False), full)
    summaries.write_summary(summaries.summary(full), short)
    before, after = (json.loads(path.read_text()) for path in (full, short))
    assert kind_of(short) == "paceline bench (summary)"
    assert not {"calls", "divergences"} & after.keys()
    assert after["command"] == before["command"]
    assert [row["method"] for row in after["summary"]["all"]] == ["none", "prompt_lookup"]
    for row, rounded in zip(before["summary"]["all"], after["summary"]["all"], strict=True):
        assert rounded["tokens_per_second"] == pytest.approx(row["tokens_per_second"], rel=1e-4)
    assert summaries.summary(short) == after


def test_a_summary_omits_local_folders(summaries: Any, tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    path.write_text('{"kind": "other", "command": "--prompts bench-output/a.jsonl"}')
    assert summaries.summary(path)["command"] == "--prompts a.jsonl"
