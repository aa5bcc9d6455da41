"""Test tables as Markdown, on the console, and as data."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from paceline.report.tables import Column, Table

TABLE = Table.of(
    "Title",
    [
        Column("method", code=True),
        "tokens/ s",
        Column("pair", "{:.1f} ({})"),
        Column("left", left=True),
    ],
    [("[a]", 1.234, (0.5, "x"), "text"), ("b", None, None, 3)],
    ["a [note]"],
)


def test_tables_in_markdown() -> None:
    assert TABLE.markdown() == [
        "Title:",
        "",
        "| method | tokens/s | pair | left |",
        "|---|---:|---:|---|",
        "| `[a]` | 1.23 | 0.5 (x) | text |",
        "| `b` | - | - | 3 |",
        "",
        "- a [note]",
        "",
    ]


def test_tables_on_the_console() -> None:
    console = Console(file=io.StringIO(), width=80)
    TABLE.show(console)
    lines = [line.split() for line in console.file.getvalue().splitlines()]  # type: ignore[attr-defined]
    assert lines[1:3] == [["Title"], ["tokens/"]], "the heading is broken"
    assert lines[4:] == [
        ["[a]", "1.23", "0.5", "(x)", "text"],
        ["b", "-", "-", "3"],
        ["a", "[note]"],
    ]


def test_data_and_columns_of_tables() -> None:
    data = TABLE.data()
    assert data["columns"] == ["method", "tokens/s", "pair", "left"]
    assert data["rows"] == (("[a]", 1.234, (0.5, "x"), "text"), ("b", None, None, 3))
    assert TABLE.column("tokens/ s") == TABLE.column(1) == [1.234, None]
    assert TABLE.only(["method", "left"]).texts == [["[a]", "text"], ["b", "3"]]
    with pytest.raises(ValueError, match="shorter"):
        Table.of("", ["a", "b"], [(1,)]).markdown()
