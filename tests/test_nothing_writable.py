"""Test that everything works from memory where no folder can be written.

One log line reports it.
"""

from __future__ import annotations

import hashlib
import importlib
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from numba.core.caching import InTreeCacheLocator

from paceline.util import cache, result_cache
from paceline.util.code_cache import CodeCache

FUNCTION = (
    "from paceline.util.compiled import compiled\n\n\n@compiled\ndef twice(number: int) -> int:\n "
    "   return 2 * number\n"
)


@pytest.fixture(autouse=True)
def fresh_state(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Reset the state to that of a process that has written nothing."""
    monkeypatch.setattr(cache, "_noted", False)
    monkeypatch.setattr(result_cache, "_unwritten", {})
    monkeypatch.setattr(CodeCache, "_writable", True)
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    caplog.set_level(logging.WARNING)


@pytest.fixture
def unwritable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a cache folder that nobody can make, not even root: it is inside a file."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "file" / "cache"))
    return tmp_path / "file" / "cache"


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Write a module with a compiled function and a file as its `__pycache__`."""
    folder = tmp_path / "modules"
    folder.mkdir()
    (folder / "doubling.py").write_text(FUNCTION)
    (folder / "__pycache__").write_text("")
    monkeypatch.syspath_prepend(folder)
    yield folder
    sys.modules.pop("doubling", None)


def imported() -> Any:
    sys.modules.pop("doubling", None)
    return importlib.import_module("doubling")


def test_compiled_code_stays_in_memory_with_one_log_line(
    module: Path, unwritable: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        assert imported().twice(4) == 8
    # A thread of an earlier test may log, too.
    own = [record for record in caplog.records if record.name == "paceline.util.cache"]
    (line,) = [record.getMessage() for record in own]
    assert "Set PACELINE_CACHE to a writable folder" in line
    assert "\n" not in line


def test_compiled_code_of_a_read_only_installation_is_cached(
    module: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))
    assert imported().twice(4) == 8
    assert [*(tmp_path / "cache").rglob("doubling.twice*.code")]
    assert (tmp_path / "cache" / "compiled").stat().st_mode & 0o077 == 0
    again = imported().twice
    assert again(4) == 8
    assert sum(again.stats.cache_hits.values()) == 1
    assert not caplog.records


def test_the_cache_folder_of_numba_comes_first(
    module: Path, unwritable: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The variable is read when numba is imported, so this runs in a new process."""
    environment = {
        **os.environ,
        "NUMBA_CACHE_DIR": str(tmp_path / "numba"),
        "PYTHONPATH": os.pathsep.join([str(module), *sys.path]),
    }
    subprocess.run(
        [sys.executable, "-c", "import doubling; assert doubling.twice(4) == 8"],
        check=True,
        env=environment,
    )
    assert [*(tmp_path / "numba").rglob("doubling.twice*.code")]


def test_compiled_code_next_to_a_read_only_module_is_used(
    module: Path,
    unwritable: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    (module / "__pycache__").unlink()
    assert imported().twice(4) == 8

    def refuse(locator: InTreeCacheLocator) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(InTreeCacheLocator, "ensure_cache_path", refuse)
    again = imported().twice
    assert again(4) == 8
    assert sum(again.stats.cache_hits.values()) == 1
    assert not caplog.records


def test_a_cache_that_becomes_unwritable_is_reported(
    module: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))
    doubling = imported()
    shutil.rmtree(tmp_path / "cache")
    (tmp_path / "cache").write_text("")
    assert doubling.twice(4) == 8
    assert doubling.twice(1.5) == 3.0
    assert len(caplog.records) == 1


@dataclass
class ProbeResult:
    value: int


def test_results_stay_in_memory(unwritable: Path, caplog: pytest.LogCaptureFixture) -> None:
    measured: list[int] = []

    def measure() -> ProbeResult:
        measured.append(1)
        return ProbeResult(len(measured))

    for facts, value in (("a", 1), ("a", 1), ("b", 2), ("a", 1)):
        key = result_cache.ResultKey("test-v1", facts, "test", "found.json")
        assert result_cache.load_or_compute(
            key, measure, lambda stored: ProbeResult(**stored)
        ) == ProbeResult(value)
    result_cache.replace(key, ProbeResult(9))
    assert result_cache.load(key, lambda stored: ProbeResult(**stored)) == ProbeResult(9)
    assert len(caplog.records) == 1
    assert "PACELINE_CACHE" in caplog.text


def test_a_disk_that_fills_while_a_result_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path))
    measured: list[int] = []

    def measure() -> int:
        measured.append(1)
        return 7

    def write(found: int) -> bytes:
        raise OSError(28, "No space left on device")

    for _ in range(2):
        found = result_cache.load_or_compute_bytes(
            result_cache.ResultKey("test-v1", "a", "test", "f"), measure, write, int
        )
        assert found == 7
    assert len(measured) == 1
    assert "No space left" in caplog.text


def test_a_user_without_a_home_folder(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """`docker run --user 12345` creates such a user."""
    for name in ("PACELINE_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)

    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    with pytest.raises(cache.CacheError, match=r"user has no home.*Set PACELINE_CACHE"):
        cache.root()
    key = result_cache.ResultKey("test-v1", "a", "test", "found.json")
    assert result_cache.load_or_compute(
        key, lambda: ProbeResult(3), lambda stored: ProbeResult(**stored)
    ) == ProbeResult(3)
    assert "user has no home" in caplog.text


def test_the_log_line_has_the_whole_problem_and_one_piece_of_advice(
    unwritable: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PACELINE_CACHE", str(unwritable / "a. Set of b; expected c"))
    with pytest.raises(cache.CacheError, match="Set PACELINE_CACHE to another one") as caught:
        cache.obtain_folder(cache.root() / "test-v1/a", "a", lambda folder: {}, lambda: None)
    cache.note_unwritable(caught.value)
    assert "Set of b; expected c', which cannot be used" in caplog.text
    assert caplog.text.count("PACELINE_CACHE") == 1


@pytest.mark.slow
@pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0 or shutil.which("setpriv") is None,
    reason="becomes nobody",
)
@pytest.mark.parametrize("home", ["/nonexistent", None])
def test_a_user_without_rights_can_generate(home: str | None) -> None:
    code = (
        "from paceline import LLM, SamplingParams; print(len(LLM('demo').generate('def add',"
        " SamplingParams(4))[0].token_ids))"
    )
    environment = {
        "PATH": os.environ["PATH"],
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        **({"HOME": home} if home else {}),
    }
    environment["PYTHONPATH"] = str(Path(__file__).parents[1])
    nobody = [
        "setpriv",
        "--reuid=54321",
        "--regid=54321",
        "--clear-groups",
        sys.executable,
        "-c",
        code,
    ]
    done = subprocess.run(
        nobody, capture_output=True, text=True, env=environment, cwd="/", timeout=600
    )
    assert (done.returncode, done.stdout) == (0, "4\n"), done.stderr
    assert done.stderr.count("PACELINE_CACHE") == 1


@pytest.mark.parametrize("damage", ["a class that is gone", "other bytes"])
def test_unreadable_code_is_written_again(
    damage: str, module: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another version of the package may have stored code with other class names."""
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))
    assert imported().twice(4) == 8
    (path,) = (tmp_path / "cache").rglob("*.code")
    content = path.read_bytes()
    gone = b"cpaceline.util.code_cache\nNoSuchClass\n."
    path.write_bytes(
        hashlib.sha256(gone).digest() + gone if damage == "a class that is gone" else content + b"x"
    )
    sys.modules.pop("doubling")
    assert imported().twice(4) == 8
    assert [*(tmp_path / "cache").rglob("*.code")] == [path]
    assert len(path.read_bytes()) > len(gone) + 100
    sys.modules.pop("doubling")
    assert imported().twice(4) == 8
