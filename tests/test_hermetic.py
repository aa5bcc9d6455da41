"""Test that the suite has a separate cache and does not touch the user's."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from paceline.util import cache
from tests.support.hermetic import isolate

ROOT = Path(__file__).parents[1]
# Plugin that logs whatever is opened, listed or made in folders that stand for the user's.
WATCH = """
import os, sys
EVENTS = ("open", "os.listdir", "os.scandir", "os.mkdir", "os.rename", "os.remove")
def note(event, arguments):
    if event not in EVENTS or not isinstance(arguments[0], (str, os.PathLike)):
        return
    path, trap = os.path.abspath(os.fspath(arguments[0])), os.environ["TRAP"]
    if path.startswith(trap) and "paceline" in path[len(trap):]:
        descriptor = os.open(os.environ["CAUGHT"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(descriptor, f"{event} {path}\\n".encode())
        os.close(descriptor)
sys.addaudithook(note)
"""
TEST = (
    "tests/engine/test_kv_cache_manager.py::test_preempted_answers_keep_their_text[prompt_lookup-0]"
)


def test_the_cache_is_temporary() -> None:
    assert cache.root().parent == Path(tempfile.gettempdir())
    assert cache.root().name.startswith("paceline-tests-")


def test_workers_share_the_cache_that_the_controller_made(monkeypatch: pytest.MonkeyPatch) -> None:
    before = cache.root()
    monkeypatch.setenv("PYTEST_XDIST_WORKER", "gw0")
    isolate()
    assert cache.root() == before


def test_the_users_cache_is_neither_read_nor_written(tmp_path: Path) -> None:
    trap, temporary, caught = tmp_path / "trap", tmp_path / "temporary", tmp_path / "caught"
    for folder in (
        trap / "home/.cache/paceline",
        trap / "xdg/paceline",
        trap / "paceline-cache",
        temporary,
    ):
        folder.mkdir(parents=True)
    (tmp_path / "watching.py").write_text(WATCH)
    environment = {
        **{
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PYTEST_", "PACELINE_"))
        },
        "HOME": str(trap / "home"),
        "XDG_CACHE_HOME": str(trap / "xdg"),
        "PACELINE_CACHE": str(trap / "paceline-cache"),
        "TRAP": str(trap),
        "CAUGHT": str(caught),
        "TMPDIR": str(temporary),
        "PYTHONPATH": os.pathsep.join((str(ROOT), str(tmp_path))),
        "PYTEST_PLUGINS": "watching",
    }
    words = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", TEST]
    done = subprocess.run(
        words, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout or done.stdout.startswith(".")
    assert not caught.exists(), caught.read_text()
    assert not list(trap.rglob("*paceline*/*"))
    assert not list(temporary.glob("paceline-tests-*"))
