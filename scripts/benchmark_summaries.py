"""Shorten results to what the pages show, without the timings of single calls.

A full result of `paceline bench`, `paceline bench --serve` or `paceline paper` has up to a
megabyte of timings. Its summary keeps figures, configuration, machine and command.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

from paceline.bench.report import KIND as BENCH
from paceline.bench.report import read_json as read_bench
from paceline.bench.result import BenchResult
from paceline.bench.serving.report import KIND as SERVING
from paceline.report.documents import kind_of

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))  # `papers` is not installed
from papers import read_paper_json  # noqa: E402
from papers.part import setting  # noqa: E402

PLAIN = "none"  # plain decoding in the same engine
SUMMARY = " (summary)"  # at the end of the kind of a summary
_PAPER = "paceline paper "
_RAW = ("calls", "cells", "divergences")
_OF_PAPERS = ("schema", "kind", "complete", "command", "convention", "sections", "config")
_DIGITS = 5
# Bench runs whose figures by kind of text a page shows; other summaries have only the totals.
_BY_CATEGORY = (
    "smollm2-batch1-bf16-amx",
    "smollm2-batch1-bf16-dots-two-cores",
    "smollm2-contexts-",
)
# Folders of a run that a reader does not have.
_FILES = {
    "../shared/data/prompts/": "prompts/",
    "../shared/models/target": "demo",
    "../shared/models/draft": "demo",
    "bench-output/": "",
}


def summary(path: Path) -> dict[str, Any]:
    """Return the summary of a result; other kinds of results are returned as they are."""
    text = path.read_text(encoding="utf-8")
    for there, here in _FILES.items():
        text = text.replace(there, here)
    content: dict[str, Any] = json.loads(text)
    kind = kind_of(path)
    if kind not in (BENCH.name, SERVING.name) and not kind.startswith(_PAPER):
        return content
    if kind.endswith(SUMMARY):
        return content
    short = {key: value for key, value in content.items() if key not in _RAW}
    short["kind"] += SUMMARY
    divergences = content.get("divergences", [])
    if divergences:
        short["differing"] = {
            "answers": len(divergences),
            "largest_gap": max(entry["top_gap"] for entry in divergences),
        }
    if kind == BENCH.name and not path.stem.startswith(_BY_CATEGORY):
        short["summary"]["categories"] = {}
    if kind == BENCH.name and content["config"]["repeats"] > 1:
        short["by_repeat"] = speeds_by_repeat(read_bench(path))
    if kind.startswith(_PAPER):
        result = read_paper_json(path)
        short = {key: value for key, value in short.items() if key in _OF_PAPERS} | {
            "title": result.title,
            "setting": setting(result),
            "environment": dataclasses.asdict(result.parts[0].environment),
        }
    rounded: dict[str, Any] = _rounded(short)
    return rounded


def speeds_by_repeat(result: BenchResult) -> dict[str, dict[str, list[float]]]:
    """Return the speed over plain decoding of every method in each pass over the prompts.

    Returns:
        Speeds by method, in "seconds" (wall clock) and "cpu_seconds" (processor time). Empty if
        plain decoding did not run.
    """

    def speed(method: str, repeat: int, time: str) -> float:
        calls = [call for call in result.calls if (call.method, call.repeat) == (method, repeat)]
        spent: float = sum(getattr(call, time) for call in calls)
        return sum(call.new_tokens for call in calls) / spent

    def ratios(method: str, time: str) -> list[float]:
        repeats = range(result.config.repeats)
        return [speed(method, number, time) / speed(PLAIN, number, time) for number in repeats]

    methods = result.methods if PLAIN in result.methods else ()
    times = ("seconds", "cpu_seconds")
    return {method: {time: ratios(method, time) for time in times} for method in methods}


def write_summary(content: dict[str, Any], path: Path) -> None:
    """Write a summary, one line for each of its keys."""
    lines = ",\n".join(
        f"{json.dumps(key)}: {json.dumps(value, separators=(',', ':'))}"
        for key, value in content.items()
    )
    path.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}")
    if isinstance(value, dict):
        return {key: _rounded(entry) for key, entry in value.items()}
    return [_rounded(entry) for entry in value] if isinstance(value, list) else value
