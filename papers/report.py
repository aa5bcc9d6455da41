"""Report a paper's results as tables, as Markdown and as JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from paceline.bench.report import provenance
from paceline.report.documents import DocumentKind, read_document, write_document
from paceline.report.tables import Table
from papers.part import CONVENTION, PaperResult, setting
from papers.registry import PAPERS, paper_part, result_class

_SCHEMA = 2


def print_paper(result: PaperResult, console: Console | None = None) -> None:
    """Print every table and figure of the paper, by default to standard output."""
    console = console or Console(highlight=False)
    console.print(escape(f"{result.title}: {'; '.join(setting(result))}"), style="bold")
    for table in tables(result):
        table.show(console)


def paper_markdown(result: PaperResult, picture: str | None = None) -> str:
    """Return the results as a Markdown section: settings, tables, notes and command.

    Args:
        result: Results for the paper.
        picture: Link to the image file of the plot.
    """
    lines = [f"### Paper: {result.title}", "", f"{'; '.join(setting(result))}.", ""]
    lines += [f"![{result.config.paper}]({picture})", ""] if picture else []
    for table in tables(result):
        lines += table.markdown()
    lines += [f"{provenance(part.environment)}.\n" for part in result.parts[:1]]
    return "\n".join([*lines, "```", result.config.command(), "```", ""])


def write_paper_json(result: PaperResult, path: str | Path) -> None:
    """Write the results and their tables as JSON, atomically.

    Raises:
        ConfigError: The file cannot be written.
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
    """Read results written by `write_paper_json`.

    Raises:
        ConfigError: The file does not exist, is damaged, or has a different schema.
    """
    return read_document(path, *map(kind, PAPERS))  # type: ignore[no-any-return]


def kind(paper: str) -> DocumentKind[Any]:
    """Return the name that marks a JSON document as a paper's results."""
    return DocumentKind(f"paceline paper {paper}", _SCHEMA, result_class(paper))


def tables(result: PaperResult) -> list[Table]:
    """Return tables and figures in the paper's order, with the published numbers."""
    return paper_part(result.config.paper, "tables").sections(result)  # type: ignore[no-any-return]
