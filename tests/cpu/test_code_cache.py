"""Check when stored machine code counts as outdated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from paceline.cpu.linear import call
from paceline.util import code_sources
from paceline.util.code_cache import CodeCache
from paceline.util.code_sources import sources_digest

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
    assert stored._cache_file._source_stamp[1] == sources_digest(str(call.__file__))
