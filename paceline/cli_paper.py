"""`paceline bench --paper NAME`: the options that go with it, and its files."""

from __future__ import annotations

from dataclasses import fields
from functools import partial
from typing import TYPE_CHECKING

import typer

from paceline.cli_files import ResultFiles, table_console
from paceline.errors import ConfigError

if TYPE_CHECKING:
    from paceline.bench import PaperConfig

_FILES = ("json_file", "png", "markdown_file")


def run_paper_command(context: typer.Context) -> None:
    """Measure the paper that `--paper` names with the options given beside it, and write the files asked for.

    Raises:
        ConfigError: no such paper, an option that the paper decides itself, or a folder that is not there.
        typer.Exit: it was interrupted; what was measured has been shown and written.
    """
    from paceline.bench import paper_markdown, print_paper, run_paper, write_paper_json

    config = _paper_config(context)
    files = ResultFiles(*(context.params[name] for name in _FILES))
    result = run_paper(config)
    print_paper(result, table_console())
    files.write(partial(write_paper_json, result), result.draw, partial(paper_markdown, result))
    if not result.complete:
        raise typer.Exit(130)


def _paper_config(context: typer.Context) -> PaperConfig:
    """The configuration out of the options that were given; the others keep the defaults that papers have.

    Raises:
        ConfigError: an option that has no place beside `--paper`.
    """
    from paceline.bench import PaperConfig
    from paceline.bench.paper import OF_ONE

    given = {name: value for name, value in context.params.items() if _was_given(context, name)}
    allowed = {field.name for field in fields(PaperConfig)}
    if "paper" not in given:
        came = [name for name in given if name in OF_ONE]
        options = " and ".join(f"--{name}" for name in came)
        raise ConfigError(f"{options} came without --paper; add --paper {OF_ONE[came[0]]}, or leave it out.")
    for name in given:
        if name not in allowed and name not in _FILES:
            raise ConfigError(
                f"--{name.replace('_', '-')} does not go with --paper {given['paper']}, which sets its own methods and settings;"
                " leave one of the two out."
            )
    return PaperConfig(**{name: value for name, value in given.items() if name in allowed})


def _was_given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name not in ("DEFAULT", "DEFAULT_MAP")
