"""Table of the host time per decode step, from the results of `scripts/step_overhead.py`."""

from __future__ import annotations

from typing import Any

from benchmark_data import load, markdown

from paceline.report.tables import Column, Table

_NAME = "step-overhead"
_BATCHES = (1, 8, 32)


def step_overhead() -> str:
    """Return the host time outside forward passes, by drafter and batch size."""
    (run,) = load(_NAME)["runs"].values()
    results: list[dict[str, Any]] = run["results"]
    times = {(row["drafter"], row["batch"]): row["overhead_ms"] for row in results}
    drafters = list(dict.fromkeys(row["drafter"] for row in results))
    columns = [Column("drafter", left=True)]
    columns += [Column(f"batch {batch}, ms", ".2f") for batch in _BATCHES]
    rows = [
        (_title(drafter), *(times[drafter, batch] for batch in _BATCHES)) for drafter in drafters
    ]
    versions, processor = run["environment"]["versions"], run["environment"]["processor"]
    note = f"{processor}, one thread, Python {versions['python']}, torch {versions['torch']}."
    return f"{markdown(Table.of('', columns, rows))}\n\n{note}"


def _title(drafter: str) -> str:
    name, _, draft = drafter.partition("+")
    return f"`{name}`, with a draft model" if draft and name != "draft_model" else f"`{name}`"
