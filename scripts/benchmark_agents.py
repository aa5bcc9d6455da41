"""Tables of required tool calls and of file edits."""

from __future__ import annotations

import json
from typing import Any

from benchmark_data import RESULTS, markdown, used

from paceline.report.tables import Column, Table


def required_calls() -> str:
    """Return the counts of required calls with random schemas, by drafter."""
    columns = [
        Column("drafter", left=True),
        Column("calls"),
        Column("invalid"),
        Column("different from plain"),
        Column("tokens per pass", ".2f"),
    ]
    names = ("calls", "invalid", "different", "tokens_per_forward")
    result = _load("required-calls")
    rows = [(_shown(row), *(row[name] for name in names)) for row in result["results"]]
    return markdown(Table.of("", columns, rows)) + _caption(result)


def file_edits() -> str:
    """Return forward passes and speed of edits whose file is in the prompt."""
    columns = [
        Column("drafter", left=True),
        Column("edits"),
        Column("tokens per pass", ".2f"),
        Column("timed edits"),
        Column("speed over plain", ".2f"),
    ]
    names = ("answers", "tokens_per_forward", "timed", "speed")
    result = _load("file-edits")
    rows = [(_shown(row), *(row[name] for name in names)) for row in result["results"][1:]]
    return markdown(Table.of("", columns, rows)) + _caption(result)


def _load(name: str) -> dict[str, Any]:
    used.add(name)
    result: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return result


def _shown(row: dict[str, Any]) -> str:
    name = str(row["drafter"])
    return name if " " in name else f"`{name}`"


def _caption(result: dict[str, Any]) -> str:
    return f"\n\nSmolLM2-135M-Instruct, bfloat16, one thread, {result['machine']}."
