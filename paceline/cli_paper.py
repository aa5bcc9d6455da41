"""`paceline bench --paper NAME`: the options that go with it, and its files."""

from __future__ import annotations

import os
import sys
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.text import Text

from paceline.errors import ConfigError

if TYPE_CHECKING:
    from paceline.bench import PaperConfig

_FILES = ("json_file", "png", "markdown_file")
_LOG_WIDTH = 150  # of a table that goes to a file or a pipe


def run_paper_command(context: typer.Context) -> None:
    """Measure the paper that `--paper` names with the options given beside it, and write the files asked for.

    Raises:
        ConfigError: no such paper, an option that the paper decides itself, or a folder that is not there.
        typer.Exit: it was interrupted; what was measured has been shown and written.
    """
    from paceline.bench import paper_markdown, print_paper, run_paper, write_paper_json

    config = _paper_config(context)
    json_file, png, page = (context.params[name] for name in _FILES)
    for path in filter(None, (json_file, png, page)):
        if not path.parent.is_dir():
            raise ConfigError(f"cannot write {str(path)!r}: there is no folder {str(path.parent)!r}. Make it first.")
    result = run_paper(config)
    print_paper(result, None if sys.stdout.isatty() else Console(width=_LOG_WIDTH, highlight=False))
    if json_file is not None:
        write_paper_json(result, json_file)
    if png is not None:
        result.draw(png)
    if page is not None:
        _append(page, paper_markdown(result, png and os.path.relpath(png, page.parent)))
    for path in filter(None, (json_file, png, page)):
        Console(stderr=True).print(Text(f"wrote {path}", style="dim"))
    if not result.complete:
        raise typer.Exit(130)


def _paper_config(context: typer.Context) -> PaperConfig:
    """The configuration out of the options that were given; the others keep the defaults that papers have.

    Raises:
        ConfigError: an option that has no place beside `--paper`.
    """
    from paceline.bench import PaperConfig

    given = {name: value for name, value in context.params.items() if _was_given(context, name)}
    allowed = {field.name for field in fields(PaperConfig)}
    for name in given:
        if name not in allowed and name not in _FILES:
            raise ConfigError(
                f"--{name.replace('_', '-')} does not go with --paper {given['paper']}, which sets its own methods and settings;"
                " leave one of the two out."
            )
    values = {name: value for name, value in given.items() if name in allowed}
    return PaperConfig(**values)


def _append(path: Path, text: str) -> None:
    """Add text at the end of a file.

    Raises:
        ConfigError: the file cannot be written.
    """
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(text + "\n")
    except OSError as error:
        raise ConfigError(f"cannot write {str(path)!r}: {error}") from error


def _was_given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name not in ("DEFAULT", "DEFAULT_MAP")
