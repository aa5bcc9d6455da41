"""Run the `paceline` command inside the test process."""

from __future__ import annotations

import io
import sys
from contextlib import redirect_stdout
from pathlib import Path

import pytest

from paceline.cli.main import main, run


def call(*words: str | Path) -> tuple[int, str]:
    """Run a command line; return its exit status and standard output.

    Errors of the package are raised, not printed.
    """
    with redirect_stdout(io.StringIO()) as out:
        status = run([str(word) for word in words])
    return status, out.getvalue()


def usage_error(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> str:
    """Run `paceline` with wrong arguments; return what it writes to standard error."""
    monkeypatch.setattr(sys, "argv", ["paceline", *words])
    monkeypatch.setenv("COLUMNS", "500")
    with pytest.raises(SystemExit) as exit_status:
        main()
    assert exit_status.value.code == 2
    return capsys.readouterr().err
