"""Render the same table for consoles, Markdown and JSON."""

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
    """The heading and the number format of one column in a table.

    Attributes:
        heading: Text above the column. Consoles break the text at the first space. Markdown and
            JSON omit the space in "/ ", and omit "- " within a word.
        form: Number format, as for the built-in function `format`. For cells with several values, a
            template such as "{:.2f} ({:.1f})".
        left: Whether to align the cells on the left.
        code: Whether Markdown tables show the cells as code.
    """

    heading: str
    form: str = ""
    left: bool = False
    code: bool = False

    def text(self, cell: Cell) -> str:
        """Format a cell of this column as text; None becomes "-"."""
        if isinstance(cell, tuple):
            return self.form.format(*cell)
        return "-" if cell is None else cell if isinstance(cell, str) else format(cell, self.form)


@dataclass(frozen=True, slots=True)
class Table:
    """A table with one cell per column in each row, and notes below the rows.

    Attributes:
        title: Title above the table. An empty string shows no title.
        columns: Headings and number formats.
        rows: Cells of each row, one per column.
        notes: Sentences below the table.
    """

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
            title: Title above the table. An empty string shows no title.
            columns: A `Column` object or a heading for each column.
            rows: Cells of each row.
            notes: Sentences below the table.
            form: Number format of the columns for which `columns` contains only a heading.
        """
        named = [
            column if isinstance(column, Column) else Column(str(column), form)
            for column in columns
        ]
        first = dataclasses.replace(named[0], left=True)
        return Table(title, (first, *named[1:]), tuple(tuple(row) for row in rows), tuple(notes))

    @property
    def texts(self) -> list[list[str]]:
        """Return the formatted cells of each row."""
        return [
            [column.text(cell) for column, cell in zip(self.columns, row, strict=True)]
            for row in self.rows
        ]

    def column(self, key: str | int) -> list[Any]:
        """Return the unformatted cells of the column with a given heading or index."""
        index = (
            key if isinstance(key, int) else [column.heading for column in self.columns].index(key)
        )
        return [row[index] for row in self.rows]

    def only(self, headings: Sequence[str]) -> Table:
        """Return a table that contains only the columns with the given headings."""
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
        """Return the title, headings, unrounded cells and notes as JSON values."""
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
