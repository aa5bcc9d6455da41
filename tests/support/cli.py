"""The `paceline` command inside the test's own process."""

from __future__ import annotations

import io
from contextlib import redirect_stdout
from pathlib import Path

from paceline.cli.main import run


def call(*words: str | Path) -> tuple[int, str]:
    """Run a command line; return exit status and standard output. Errors of ours are raised as
    they are.
    """
    with redirect_stdout(io.StringIO()) as out:
        status = run([str(word) for word in words])
    return status, out.getvalue()
