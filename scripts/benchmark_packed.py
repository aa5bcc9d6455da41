"""Table of the GGUF guide, from `scripts/compare_packed.py`."""

from __future__ import annotations

from typing import Any

from benchmark_data import load


def packed_answers() -> str:
    """Return how many answers of packed models differ from those of converted models."""
    content = load("packed-answers")
    lines = ["| file | drafters | batch | answers | different |", "|---|---|---:|---:|---:|"]
    groups: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for row in content["rows"]:
        groups.setdefault((row["file"], row["batch"]), []).append(row)
    for (file, batch), rows in groups.items():
        names = ", ".join(f"`{row['drafter']}`" for row in rows)
        answers, different = (sum(row[key] for row in rows) for key in ("answers", "different"))
        lines.append(f"| `{file}` | {names} | {batch} | {answers:,} | {different} |")
    return "\n".join(lines)
