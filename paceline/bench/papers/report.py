"""Reports of a paper measured again: tables on the console, Markdown, and JSON that can be read
back.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from paceline.bench.papers.part import CONVENTION, PaperResult, setting
from paceline.bench.papers.registry import PAPERS, paper_part, result_class
from paceline.bench.report import provenance
from paceline.report.documents import DocumentKind, read_document, write_document
from paceline.report.tables import Table

_SCHEMA = 2


def print_paper(result: PaperResult, console: Console | None = None) -> None:
    """Show every table and figure of the paper. Default console: standard output."""
    console = console or Console(highlight=False)
    console.print(escape(f"{result.title}: {'; '.join(setting(result))}"), style="bold")
    for table in tables(result):
        table.show(console)


def paper_markdown(result: PaperResult, picture: str | None = None) -> str:
    """Return the paper as a Markdown section: setting, tables, notes, the command that repeats
    it; `picture` is a link.
    """
    lines = [f"### Paper: {result.title}", "", f"{'; '.join(setting(result))}.", ""]
    lines += [f"![{result.config.paper}]({picture})", ""] if picture else []
    for table in tables(result):
        lines += table.markdown()
    lines += [f"{provenance(part.environment)}.\n" for part in result.parts[:1]]
    return "\n".join([*lines, "```", result.config.command(), "```", ""])


def write_paper_json(result: PaperResult, path: str | Path) -> None:
    """Write everything that was measured, and its tables; the file appears whole or not at all.

    Raises:
        ConfigError: the file cannot be written.
    """
    write_document(
        path,
        kind(result.config.paper),
        result,
        complete=result.complete,
        command=result.config.command(),
        convention=CONVENTION,
        sections=[table.data() for table in tables(result)],
    )


def read_paper_json(path: str | Path) -> PaperResult:
    """Read a result that `write_paper_json` wrote.

    Raises:
        ConfigError: not such a file, one of another schema, or a damaged one.
    """
    return read_document(path, *map(kind, PAPERS))  # type: ignore[no-any-return]


def kind(paper: str) -> DocumentKind[Any]:
    """Return the kind of document that holds a paper's result."""
    return DocumentKind(f"paceline paper {paper}", _SCHEMA, result_class(paper))


def tables(result: PaperResult) -> list[Table]:
    """Return its tables and figures in the order of the paper, the paper's own values beside
    what was measured.
    """
    return paper_part(result.config.paper, "tables").sections(result)  # type: ignore[no-any-return]
