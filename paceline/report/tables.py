"""Render tables for consoles, Markdown and JSON, with the same figures."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rich import table as rich_table
from rich.console import Console
from rich.markup import escape

Value = str | float | None
Cell = Value | tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table, with its format.

    Attributes:
        heading: Text above the column. On consoles, the text may be broken after "/ " and "- ".
        form: Format of numbers, as for the function `format`; for cells with several values, a
            template such as "{:.2f} ({:.1f})".
        left: Whether to align text on the left.
        code: Whether to show text as code in Markdown.
    """

    heading: str
    form: str = ""
    left: bool = False
    code: bool = False

    def text(self, cell: Cell) -> str:
        """Return a cell as text; "-" for None."""
        if isinstance(cell, tuple):
            return self.form.format(*cell)
        return "-" if cell is None else cell if isinstance(cell, str) else format(cell, self.form)


@dataclass(frozen=True, slots=True)
class Table:
    """A table with one cell per column in each row, and notes below the rows."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()

    @staticmethod
    def of(
        title: str,
        columns: Iterable[object],
        rows: Iterable[Iterable[Any]],
        notes: Iterable[str] = (),
        form: str = ".2f",
    ) -> Table:
        """Build a table whose first column is aligned on the left.

        Args:
            title: Title of the table.
            columns: `Column` objects or headings. A heading stands for a column with the format
                `form`.
            rows: Cells of each row.
            notes: Sentences below the table.
            form: Default format of numbers.
        """
        named = [
            column if isinstance(column, Column) else Column(str(column), form)
            for column in columns
        ]
        first = dataclasses.replace(named[0], left=True)
        return Table(title, (first, *named[1:]), tuple(tuple(row) for row in rows), tuple(notes))

    @property
    def texts(self) -> list[list[str]]:
        """Return the cells of each row as text."""
        return [
            [column.text(cell) for column, cell in zip(self.columns, row, strict=True)]
            for row in self.rows
        ]

    def column(self, key: str | int) -> list[Any]:
        """Return the cells of a column, by its heading or its index."""
        index = (
            key if isinstance(key, int) else [column.heading for column in self.columns].index(key)
        )
        return [row[index] for row in self.rows]

    def only(self, headings: Sequence[str]) -> Table:
        """Return the table with only the given columns."""
        indices = [index for index, column in enumerate(self.columns) if column.heading in headings]
        rows = (tuple(row[index] for index in indices) for row in self.rows)
        return Table(
            self.title, tuple(self.columns[index] for index in indices), tuple(rows), self.notes
        )

    def show(self, console: Console) -> None:
        """Print the title, rows and notes to a console."""
        if self.title:
            console.print(f"\n[bold]{escape(self.title)}[/bold]")
        shown = rich_table.Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
        for column in self.columns:
            heading = (
                column.heading if "=" in column.heading else column.heading.replace(" ", "\n", 1)
            )
            shown.add_column(
                heading, justify="left" if column.left else "right", no_wrap=True, overflow="fold"
            )
        for texts in self.texts:
            shown.add_row(*map(escape, texts))
        console.print(shown)
        for note in self.notes:
            console.print(escape(note), style="dim")

    def markdown(self) -> list[str]:
        """Return the lines of a Markdown table, with a title and notes."""
        above = [f"{self.title}:", ""] if self.title else []
        rule = "|" + "|".join("---" if column.left else "---:" for column in self.columns) + "|"
        rows = [
            [
                f"`{text}`" if column.code else text
                for column, text in zip(self.columns, row, strict=True)
            ]
            for row in self.texts
        ]
        notes = [*(f"- {note}" for note in self.notes), ""] if self.notes else []
        return [*above, _line(self._headings), rule, *map(_line, rows), "", *notes]

    def data(self) -> dict[str, Any]:
        """Return the table's title, headings, unrounded rows and notes, for JSON."""
        return {
            "title": self.title,
            "columns": self._headings,
            "rows": self.rows,
            "notes": self.notes,
        }

    @property
    def _headings(self) -> list[str]:
        return [column.heading.replace("/ ", "/").replace("- ", "") for column in self.columns]


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"
