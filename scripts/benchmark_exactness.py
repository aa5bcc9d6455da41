"""Tables of the Exactness page, from the summaries in docs/results."""

from __future__ import annotations

from benchmark_data import PLAIN, all_names, caption, load, markdown, read, shown

from paceline.report.tables import Column, Table


def exactness() -> str:
    """Return how many answers with drafting are identical to plain decoding."""
    totals: dict[tuple[str, float, int], list[int]] = {}
    for run in map(read, all_names()):
        if run.get("kind", "").startswith("paceline bench (") and run["reference"] == PLAIN:
            key = (
                run["dtype"],
                run["config"]["sampling"]["temperature"],
                run["config"]["batch"],
            )
            total = totals.setdefault(key, [0, 0, 0])
            total[0] += 1
            total[1] += sum(row["equal"] for row in run["summary"]["all"])
            total[2] += sum(row["compared"] for row in run["summary"]["all"])
    rows = [
        (dtype, f"{heat:g}", f"{batch}", f"{runs}", f"{equal:,} of {compared:,}")
        for (dtype, heat, batch), (runs, equal, compared) in sorted(totals.items())
    ]
    columns = [
        Column("dtype", left=True),
        Column("temperature"),
        Column("batch"),
        Column("runs"),
        Column("identical to plain decoding"),
    ]
    return markdown(Table.of("", columns, rows))


def exact_float32() -> str:
    """Return the answers in float32 that equal those of transformers."""
    name = "smollm2-equal-fp32"
    rows = [
        (
            shown(row["method"]),
            f"{row['equal']} of {row['compared']}",
            row["tokens_per_forward"],
        )
        for row in load(name)["summary"]["all"]
        if row["compared"]
    ]
    columns = [
        Column("drafter", left=True),
        Column("identical to transformers"),
        Column("tokens per forward pass", ".2f"),
    ]
    return markdown(Table.of("", columns, rows)) + caption([name])
