"""Check when stored machine code counts as outdated."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from numba.core import types
from numba.core.caching import IndexDataCacheFile

from paceline.cpu.linear import call
from paceline.util import code_sources
from paceline.util.code_cache import CodeCache, CodeFiles
from paceline.util.code_sources import sources_digest

PASSING = """
from paceline.util.compiled import compiled, kernel

@kernel
def times(number):
    return 3 * number

@kernel
def run(function, number):
    return function(number)

@compiled
def caller(number):
    return run(times, number)
"""
KERNEL = """from paceline.cpu import lanes
from paceline.cpu.settings import (
    BLOCK,
)
from paceline.util.compiled import compiled
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package with a kernel, a callee in another file, settings and other modules."""
    monkeypatch.setattr(code_sources, "_ROOT", tmp_path)
    folder = tmp_path / "paceline" / "cpu"
    folder.mkdir(parents=True)
    (folder / "kernel.py").write_text(KERNEL)
    (folder / "lanes.py").write_text("import numba\nfrom paceline.cpu import deep, plain\n")
    (folder / "deep.py").write_text("from paceline.util.compiled import inlined\n")
    (folder / "plain.py").write_text("from paceline.cpu import far\nWIDTH = 8\n")
    (folder / "settings.py").write_text("from paceline.core.settings import SIZE\n")
    for name in ("far", "other"):
        (folder / f"{name}.py").write_text("SIZE = 4\n")
    (tmp_path / "paceline" / "core").mkdir()
    (tmp_path / "paceline" / "core" / "settings.py").write_text("SIZE = 4\n")
    return folder


def digest(package: Path) -> str:
    """Return the digest of the kernel, as in a new process."""
    for function in (sources_digest, code_sources._read, code_sources._files):
        function.cache_clear()
    return sources_digest(str(package / "kernel.py"))


@pytest.mark.parametrize(
    "name", ["kernel", "lanes", "deep", "plain", "settings", "../core/settings"]
)
def test_a_change_outdates_the_code_that_contains_it(package: Path, name: str) -> None:
    before, file = digest(package), package / f"{name}.py"
    old = file.read_text()
    file.write_text(old + "# changed\n")
    assert digest(package) != before
    file.write_text(old)
    assert digest(package) == before


@pytest.mark.parametrize("name", ["far", "other"])
def test_other_changes_do_not(package: Path, name: str) -> None:
    """The imports of a module without compiled code do not matter."""
    before = digest(package)
    (package / f"{name}.py").write_text("SIZE = 5\n")
    assert digest(package) == before


def test_the_stamp_of_stored_code_contains_its_sources() -> None:
    function: Any = call.read_call
    stored = CodeCache(function.__wrapped__)
    stamp = stored._impl.locator.get_source_stamp(), sources_digest(str(call.__file__))
    files = CodeFiles(stored.cache_path, stored._impl.filename_base, stamp)
    assert stored._cache_file._mark == files._mark


KEYS = [((kind,), ("cpu",), ("bytecode", "closure")) for kind in (types.int64, types.float64)]


class _TwoProcesses(NamedTuple):
    """Two processes that compile different overloads of a function at the same time."""

    first: Any
    second: Any

    def save(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let the second process save its code while the first one writes its own."""
        replace, is_first = os.replace, True

        def interrupted(source: str, target: str) -> None:
            nonlocal is_first
            if is_first:
                is_first = False
                self.second.save(KEYS[1], "code for float64")
            replace(source, target)

        monkeypatch.setattr(os, "replace", interrupted)
        self.first.save(KEYS[0], "code for int64")


def loaded(files: Any) -> list[Any]:
    return [files.load(key) for key in KEYS]


def test_processes_that_compile_together_do_not_mix_their_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    processes = _TwoProcesses(*(CodeFiles(str(tmp_path), "f", 1) for _ in range(2)))
    processes.save(monkeypatch)
    assert loaded(CodeFiles(str(tmp_path), "f", 1)) == ["code for int64", "code for float64"]


def test_the_test_detects_mixed_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that numba's numbered files fail the same test."""
    processes = _TwoProcesses(*(IndexDataCacheFile(str(tmp_path), "f", 1) for _ in range(2)))
    processes.save(monkeypatch)
    assert loaded(IndexDataCacheFile(str(tmp_path), "f", 1)) != [
        "code for int64",
        "code for float64",
    ]


def test_damaged_and_outdated_code_is_not_loaded(tmp_path: Path) -> None:
    files = CodeFiles(str(tmp_path), "f", "old source")
    files.save(KEYS[0], "code")
    (path,) = tmp_path.iterdir()
    content = path.read_bytes()
    path.write_bytes(content[:-1] + b"x")
    assert files.load(KEYS[0]) is None
    newer = CodeFiles(str(tmp_path), "f", "new source")
    assert newer.load(KEYS[0]) is None
    newer.save(KEYS[0], "newer code")
    assert newer.load(KEYS[0]) == "newer code"
    assert [each.read_bytes() == content for each in tmp_path.iterdir()] == [False]


def test_code_for_compiled_functions_as_arguments_is_not_stored(tmp_path: Path) -> None:
    """The key of such code would not change when the function changes."""
    files = CodeFiles(str(tmp_path), "f", 1)
    function: Any = call.read_call
    key = (types.Dispatcher(function), types.int64), ("cpu",)
    files.save(key, "code")
    assert files.load(key) is None
    assert not list(tmp_path.iterdir())


def test_a_caller_is_compiled_again_without_its_file(tmp_path: Path) -> None:
    """The file of the caller contains the code of `run` and `times`."""
    (tmp_path / "passing.py").write_text(PASSING)
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "code")}
    environment["PYTHONPATH"] = f"{Path(call.__file__).parents[3]}{os.pathsep}{tmp_path}"
    for number in (3, 5):
        (tmp_path / "passing.py").write_text(PASSING.replace("3", str(number)))
        for _ in range(2):
            done = subprocess.run(
                [sys.executable, "-c", "import passing; print(passing.caller(10))"],
                capture_output=True,
                text=True,
                env=environment,
            )
            assert done.stdout == f"{10 * number}\n", done.stderr
            for path in (tmp_path / "code").rglob("passing.caller*.code"):
                path.unlink()


def test_a_function_at_another_line_replaces_its_older_code(tmp_path: Path) -> None:
    CodeFiles(str(tmp_path), "module.f-1.py311", "old source").save(KEYS[0], "code")
    (tmp_path / "module.f-1.py311.nbi").touch()
    (tmp_path / "module.g-1.py311.nbi").touch()
    CodeFiles(str(tmp_path), "module.f-2.py311", "new source").save(KEYS[0], "code")
    names = sorted(path.name for path in tmp_path.iterdir())
    assert [name.split(".py")[0] for name in names] == ["module.f-2", "module.g-1"]
