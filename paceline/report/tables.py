"""Tables of values, shown on a console, written as Markdown, or given to programs, with the same figures in each."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from collections.abc import Sequence as ListLike
from dataclasses import dataclass
from typing import Any

from rich import table as rich_table
from rich.console import Console
from rich.markup import escape

Value = str | float | None
Cell = Value | tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table.

    Attributes:
        heading: where it has "/ " or "- ", consoles may break it there.
        form: how numbers are written, as in `format`. For cells of several values a template, such as "{:.2f} ({:.1f})".
        left: whether texts stand on the left. code: whether Markdown shows the texts as code.
    """

    heading: str
    form: str = ""
    left: bool = False
    code: bool = False

    def text(self, cell: Cell) -> str:
        """Return a cell as it is shown, "-" for None."""
        if isinstance(cell, tuple):
            return self.form.format(*cell)
        return "-" if cell is None else cell if isinstance(cell, str) else format(cell, self.form)


@dataclass(frozen=True, slots=True)
class Table:
    """Rows with one cell per column; the notes stand below them."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()

    @staticmethod
    def of(
        title: str, columns: Iterable[object], rows: Iterable[Iterable[Any]], notes: Iterable[str] = (), form: str = ".2f"
    ) -> Table:
        """Make a table whose first column stands on the left.

        Args:
            columns: each a `Column`, or a heading, and then its format is `form`. rows: of cells.
        """
        named = [one if isinstance(one, Column) else Column(str(one), form) for one in columns]
        first = dataclasses.replace(named[0], left=True)
        return Table(title, (first, *named[1:]), tuple(tuple(row) for row in rows), tuple(notes))

    @property
    def texts(self) -> list[list[str]]:
        """The rows as they are shown."""
        return [[column.text(cell) for column, cell in zip(self.columns, row, strict=True)] for row in self.rows]

    def column(self, key: str | int) -> list[Any]:
        """Return the cells of the first column with that heading, or in that place."""
        place = key if isinstance(key, int) else [one.heading for one in self.columns].index(key)
        return [row[place] for row in self.rows]

    def only(self, headings: ListLike[str]) -> Table:
        """Return the table with these columns alone."""
        kept = [place for place, one in enumerate(self.columns) if one.heading in headings]
        rows = (tuple(row[place] for place in kept) for row in self.rows)
        return Table(self.title, tuple(self.columns[place] for place in kept), tuple(rows), self.notes)

    def show(self, console: Console) -> None:
        """Print title, rows and notes."""
        if self.title:
            console.print(f"\n[bold]{escape(self.title)}[/bold]")
        shown = rich_table.Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
        for one in self.columns:
            heading = one.heading if "=" in one.heading else one.heading.replace(" ", "\n", 1)
            shown.add_column(heading, justify="left" if one.left else "right", no_wrap=True, overflow="fold")
        for texts in self.texts:
            shown.add_row(*map(escape, texts))
        console.print(shown)
        for note in self.notes:
            console.print(escape(note), style="dim")

    def markdown(self) -> list[str]:
        """Return the lines of a Markdown table, with title and notes."""
        above = [f"{self.title}:", ""] if self.title else []
        rule = "|" + "|".join("---" if one.left else "---:" for one in self.columns) + "|"
        rows = [[f"`{text}`" if one.code else text for one, text in zip(self.columns, row, strict=True)] for row in self.texts]
        notes = [*(f"- {note}" for note in self.notes), ""] if self.notes else []
        return [*above, _line(self._headings), rule, *map(_line, rows), "", *notes]

    def data(self) -> dict[str, Any]:
        """Return the values for JSON: title, headings, rows with numbers as they were measured, and notes."""
        return {"title": self.title, "columns": self._headings, "rows": self.rows, "notes": self.notes}

    @property
    def _headings(self) -> list[str]:
        return [one.heading.replace("/ ", "/").replace("- ", "") for one in self.columns]


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"
