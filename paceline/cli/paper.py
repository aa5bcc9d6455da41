"""Implement the command `paceline paper NAME`."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

import paceline
from paceline.cli.commands import COMMANDS
from paceline.cli.main import run
from paceline.errors import ConfigError

# Each paper is a command of the package `papers`, which prints its own help.
paper = App(name="paper", help=COMMANDS["paper"], help_flags=(), version_flags=())


@paper.default
def run_paper(*words: Annotated[str, Parameter(allow_leading_hyphen=True)]) -> int:
    """Run the command of a paper, from the repository that holds the package.

    Args:
        words: Name of the paper and its options.
    Raises:
        ConfigError: The installation has no folder `papers`.
    """
    return run(words, _papers_app())


def _papers_app() -> App:
    """Import the application of the package `papers`, which is not installed."""
    root = Path(paceline.__file__).parents[1]
    if not (root / "papers" / "registry.py").is_file():
        raise ConfigError(
            "paper: the folder papers/ is missing, as only the repository holds it. Clone the"
            " repository and run `python -m paceline paper` there."
        )
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))
    app: App = import_module("papers.cli").app
    return app
