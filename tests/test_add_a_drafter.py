"""Follow docs/development/add-a-drafter.md in an empty folder.

Its files must pass the project's lint and type checks.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.commands import run_command

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "development" / "add-a-drafter.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r'```\w+ title="([\w.]+)"\n(.*?)```', PAGE, re.DOTALL))
COMMANDS = [
    line
    for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    for line in block.splitlines()
    if line
]


def run(words: list[str], folder: Path, *path: Path) -> str:
    """Run a command of the page; `path` lists folders of installed packages."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, [*path, ROOT])),
        "COLUMNS": "200",
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        words, cwd=folder, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, f"{shlex.join(words)}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the files of the page; return their folder."""
    root = tmp_path_factory.mktemp("bigram")
    for name, text in FILES.items():
        (root / name).write_text(text, encoding="utf-8")
    return root


def test_the_page_lists_its_files() -> None:
    assert {"pyproject.toml", "bigram_drafter.py", "test_bigram.py", "record.py", "use.py"} == set(
        FILES
    )
    assert all(f"  {name} " in PAGE for name in FILES if name != "use.py")


def test_files_pass_lint_and_type_checks(folder: Path) -> None:
    pytest.importorskip("ruff")
    pytest.importorskip("mypy")
    config = str(ROOT / "pyproject.toml")
    sources = [str(folder / name) for name in FILES if name.endswith(".py")]
    for words in (
        ["ruff", "check", "--config", config],
        ["ruff", "format", "--check", "--config", config],
    ):
        run([sys.executable, "-m", *words, *sources], folder)
    run([sys.executable, "-m", "mypy", "--config-file", config, "--strict", *sources], ROOT)


@pytest.mark.slow
def test_commands_of_the_page_run(folder: Path, tmp_path: Path) -> None:
    """Run the commands in order, with `pip install` to a temporary folder."""
    for command in COMMANDS:
        words = shlex.split(command)
        if words[:2] == ["pip", "install"]:
            flags = [
                "--quiet",
                "--no-deps",
                "--no-index",
                "--no-build-isolation",
                "--target",
                str(tmp_path),
            ]
            output = run([sys.executable, "-m", "pip", "install", *flags, "."], folder)
            continue
        done = run_command(*words[words[0] == "python" :], folder=folder, path=[tmp_path])
        output = done.stdout
        assert done.returncode == 0, f"{command}\n{output}\n{done.stderr}"
        if words[:2] == ["paceline", "drafters"]:
            assert re.search(r"^bigram +width=2 +Proposes the most frequent", output, re.MULTILINE)
        if words[:2] == ["paceline", "replay"]:
            assert "bigram_drafter:Bigram:width=3" in output
        if words[:2] == ["paceline", "bench"]:
            assert "bigram_drafter:Bigram:width=3" in output
            assert "3/3" in output
