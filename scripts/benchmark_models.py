"""Tables about repeated runs, and about what was fitted on one model."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from benchmark_data import PLAIN, caption, load, markdown, shown

from paceline.report.tables import Column, Table

REPEATED = {1: "smollm2-repeats-batch1-bf16-dots", 8: "smollm2-repeats-batch8-bf16-dots"}
GEMMA = "gemma3-270m-batch1-bf16-dots"
REPLAYS = {"SmolLM2-135M-Instruct": "replay-smollm2", "Gemma 3 270M": "replay-gemma3-270m"}
MAX_SPREAD = 0.1  # range over median, above which a repeated figure is left out
_NODES = (8, 16, 32)  # draft tokens per tree in the replays


def repeats() -> str:
    """Return the median and the range of each drafter's speed over several passes.

    Speeds are ratios of processor time, because other jobs ran on the machine. A speed that varied
    too much is left out.
    """
    runs = {batch: load(name)["by_repeat"] for batch, name in REPEATED.items()}
    methods = dict.fromkeys(method for run in runs.values() for method in run if method != PLAIN)
    columns = [Column("drafter", left=True), *(Column(f"batch {batch}") for batch in runs)]
    rows = [
        (
            shown(method),
            *(
                _with_range(run[method]["cpu_seconds"]) if method in run else None
                for run in runs.values()
            ),
        )
        for method in methods
    ]
    return markdown(Table.of("", columns, rows)) + caption(REPEATED.values())


def second_model() -> str:
    """Return the speed of the drafters without a second model on Gemma 3 270M."""
    columns = [
        Column("drafter", left=True),
        Column("speed"),
        Column("tokens per pass", ".2f"),
        Column("identical to plain decoding"),
    ]
    run = load(GEMMA)
    rows = [
        (
            shown(row["method"]),
            _with_range(run["by_repeat"][row["method"]]["seconds"]),
            row["tokens_per_forward"],
            f"{row['equal']} of {row['compared']}",
        )
        for row in run["summary"]["all"]
        if row["method"] != PLAIN
    ]
    return markdown(Table.of("", columns, rows)) + caption([GEMMA])


def fitted() -> str:
    """Return the tokens per step of drafters with recorded answers of two models."""
    runs = {model: load(name)["rows"] for model, name in REPLAYS.items()}
    columns = [Column("drafter", left=True)]
    columns += [Column(f"{model}, {nodes}", ".2f") for model in runs for nodes in _NODES]
    rows = []
    for drafter in dict.fromkeys(row["drafter"] for run in runs.values() for row in run):
        steps = [
            row["tokens_per_step"]
            for run in runs.values()
            for nodes in _NODES
            for row in run
            if row["drafter"] == drafter and row["max_nodes"] == nodes
        ]
        rows.append((shown(drafter), *steps))
    return markdown(Table.of("", columns, rows))


def _with_range(speeds: Sequence[float]) -> str | None:
    middle = statistics.median(speeds)
    if max(speeds) - min(speeds) > MAX_SPREAD * middle:
        return None
    return f"{middle:.2f} ({min(speeds):.2f}\N{EN DASH}{max(speeds):.2f})"
