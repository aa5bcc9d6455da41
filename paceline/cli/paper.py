"""Implement the command `paceline paper NAME`."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

import paceline
from paceline.cli.main import run
from paceline.errors import ConfigError

# The command-line app of `papers` prints the help and the version.
paper = App(name="paper", help_flags=(), version_flags=())


@paper.default
def run_paper(
    name: Annotated[str, Parameter(name="NAME", allow_leading_hyphen=True)] = "",
    /,
    *options: Annotated[str, Parameter(name="OPTION", allow_leading_hyphen=True)],
) -> int:
    """Reproduce the tables and figures of a paper with your models.

    The command requires a clone of the repository.

    Example: paceline paper lookahead --png figures.png

    Args:
        name: Name of the paper: lookahead, ouroboros, specdec_pp or sssd. Default: show the help
            for all papers.
        options: Target model and options; `paceline paper NAME --help` lists the options.
    """
    return run([name, *options] if name else [], _papers_app())


def _papers_app() -> App:
    """Import the command-line app of `papers`, which only the repository contains."""
    root = Path(paceline.__file__).parents[1]
    if not (root / "papers" / "registry.py").is_file():
        raise ConfigError(
            "paper: the folder papers/ is missing, because it exists only in the repository."
            " Clone the repository and run `python -m paceline paper` there."
        )
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))
    app: App = import_module("papers.cli").app
    return app
