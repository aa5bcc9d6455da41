"""Reports of a paper measured again: tables on the console, Markdown, and JSON that can be read back."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence as Seq
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from paceline.bench.document import read_document, write_document
from paceline.bench.paper import CONVENTION, PaperConfig, PaperResult, Section, paper_module

SCHEMA = 1
KIND = "paceline bench --paper"


def print_paper(result: PaperResult, console: Console | None = None) -> None:
    """Show every table and figure of the paper. Default console: standard output."""
    console = console or Console(highlight=False)
    console.print(escape(f"{result.title}: {setting_line(result)}"), style="bold")
    for section in result.sections():
        console.print(f"\n[bold]{escape(section.title)}[/bold]")
        console.print(_rich_table(section))
        for note in section.notes:
            console.print(escape(note), style="dim")


def paper_markdown(result: PaperResult, picture: str | None = None) -> str:
    """The paper as a Markdown section: setting, tables, notes, the command that repeats it; `picture` is a link to show."""
    lines = [f"### Paper: {result.title}", "", f"{setting_line(result)}.", ""]
    lines += [f"![{result.config.paper}]({picture})", ""] if picture else []
    for section in result.sections():
        lines += [f"{section.title}:", "", *_markdown_table(section), "", *(f"- {note}" for note in section.notes), ""]
    for environment in [part.environment for part in result.parts][:1]:
        changed = " with local changes" if environment.modified else ""
        versions = ", ".join(f"{name} {version}" for name, version in environment.versions.items())
        lines += [f"{environment.date}, commit {environment.commit or 'unknown'}{changed}; {versions}.", ""]
    return "\n".join([*lines, "```", result.config.command(), "```", ""])


def write_paper_json(result: PaperResult, path: str | Path) -> None:
    """Write everything that was measured; the file appears whole or not at all.

    Raises:
        ConfigError: the file cannot be written.
    """
    content = {
        "paper": result.config.paper,
        "complete": result.complete,
        "command": result.config.command(),
        "convention": CONVENTION,
        "summary": result.summary(),
        "result": dataclasses.asdict(result),  # type: ignore[call-overload]
    }
    write_document(path, KIND, SCHEMA, content)


def read_paper_json(path: str | Path) -> PaperResult:
    """A result from what `write_paper_json` wrote.

    Raises:
        ConfigError: not such a file, or one of another schema.
    """
    document = read_document(path, KIND, SCHEMA)
    values = document["result"]
    config = PaperConfig(**values["config"])
    return paper_module(config.paper).read(config, values)  # type: ignore[no-any-return]


def setting_line(result: PaperResult) -> str:
    """What ran where, once for all parts, and what differs between them."""
    settings = [part.setting for part in result.parts]
    shared = [piece for piece in settings[0] if all(piece in setting for setting in settings)]
    own = {part.label: ", ".join(piece for piece in part.setting if piece not in shared) for part in result.parts}
    pieces = [*shared, *(f"{label}: {text}" for label, text in own.items() if text)]
    return "; ".join(pieces if result.complete else [*pieces, "PARTIAL: interrupted"])


def _rich_table(section: Section) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for place, heading in enumerate(section.headings):
        table.add_column(_broken(heading), justify="right" if place else "left", no_wrap=True)
    for row in section.rows:
        table.add_row(*map(escape, row))
    return table


def _broken(heading: str) -> str:
    """A column heading on two lines, but for "W = 4" and the like."""
    return heading if "=" in heading else heading.replace(" ", "\n", 1)


def _markdown_table(section: Section) -> list[str]:
    def line(cells: Seq[str]) -> str:
        return "| " + " | ".join(cells) + " |"

    titles = [heading.replace("/ ", "/") for heading in section.headings]
    return [line(titles), "|---|" + "---:|" * (len(titles) - 1), *map(line, section.rows)]
