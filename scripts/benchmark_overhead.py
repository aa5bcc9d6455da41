"""Table of the host time per decode step, from the results of `scripts/step_overhead.py`."""

from __future__ import annotations

from typing import Any

from benchmark_data import load, markdown

from paceline.report.tables import Column, Table

_NAME = "step-overhead"
_REPLAYED, _COMPUTED = "replayed", "cpu"  # labels of the runs
_BATCHES = (1, 8, 32)


def step_overhead() -> str:
    """Return the host time outside forward passes, by drafter and batch size."""
    runs: dict[str, Any] = load(_NAME)["runs"]
    rows = [
        (_title(drafter) + note, *times)
        for label, note in ((_REPLAYED, ""), (_COMPUTED, ", forward passes on the same core"))
        for drafter, times in _times_of(runs[label]["results"]).items()
        if label == _REPLAYED or drafter == "auto"
    ]
    columns = [Column("drafter", left=True)]
    columns += [Column(f"batch {batch}, ms", ".2f") for batch in _BATCHES]
    environment = runs[_REPLAYED]["environment"]
    versions, processor = environment["versions"], environment["processor"]
    note = f"{processor}, one thread, Python {versions['python']}, torch {versions['torch']}."
    return f"{markdown(Table.of('', columns, rows))}\n\n{note}"


def _times_of(results: list[dict[str, Any]]) -> dict[str, list[float]]:
    """Return the milliseconds per step by drafter, in the order of `_BATCHES`."""
    times = {(row["drafter"], row["batch"]): row["overhead_ms"] for row in results}
    drafters = dict.fromkeys(row["drafter"] for row in results)
    return {drafter: [times[drafter, batch] for batch in _BATCHES] for drafter in drafters}


def _title(drafter: str) -> str:
    name, _, draft = drafter.partition("+")
    return f"`{name}`, with a draft model" if draft and name != "draft_model" else f"`{name}`"
