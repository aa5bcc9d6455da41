"""Test that a command or a program says when it compiles code."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import numba
import pytest

from paceline.cli import main

MODULE = """from paceline.util.compiled import compiled


@compiled
def twice(number):
    return 2 * number
"""
NOTE = "paceline: compiling new kernels (doubled, ...), once each; this can take about a minute\n"


def twice_in_a_new_process(words: object) -> int:
    sys.modules.pop("doubled", None)
    twice = importlib.import_module("doubled").twice
    return int(twice(4) + twice(0.5))


def test_the_first_use_prints_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Code from the disk is not compiled."""
    (tmp_path / "doubled.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))
    # If numba was imported earlier, it reads the variable again only when it compiles.
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.setattr(numba.config, "CACHE_DIR", "")
    monkeypatch.setattr(main, "_status", twice_in_a_new_process)
    for note in (NOTE, ""):
        with pytest.raises(SystemExit, match="9"):
            main.main()
        assert capsys.readouterr().err == note
    sys.modules.pop("doubled")


def test_a_program_logs_one_line_by_default() -> None:
    program = """from paceline.util.compilation import before_compilation

for module in ("doubled", "paceline.cpu.rows"):
    before_compilation(module)
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert ended.stderr.decode() == NOTE
