"""Store generated folders in the user's cache.

The cache folder is $PACELINE_CACHE. If this variable is not set, the cache folder is
$XDG_CACHE_HOME/paceline, or ~/.cache/paceline if neither variable is set. Each generated folder is
named KIND-vFORMAT/KEY. KEY is a checksum of the folder's source: a file, or the facts on which a
measurement depends. `paceline cache` lists and clears the folders.

While a process creates a folder, the folder is named KEY.part and the process holds the lock
KEY.lock. A folder named KEY is therefore always complete, and only one process at a time creates
it. The lock is released when the process ends. If KEY.part exists but its lock is free, a killed
process has left KEY.part behind.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from paceline.errors import ConfigError
from paceline.util.files import parse_json

VARIABLE = "PACELINE_CACHE"
CARD = "paceline.json"  # file with a folder's metadata, written last, with all file sizes
_log = logging.getLogger(__name__)
_noted = False  # whether this process has warned that the cache cannot be written
_ENTRY = re.compile(r"[0-9a-f]{64}(\.part)?")


class CacheError(ConfigError):
    """Raised if the cache cannot be written, or the user has no cache folder.

    Attributes:
        problem: What happened, without the fix.
    """

    def __init__(self, problem: str, advice: str = "") -> None:
        super().__init__(problem + advice)
        self.problem = problem


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """A finished folder in the cache.

    Attributes:
        folder: Path of the folder.
        card: Metadata: source, sha256, made, files (size in bytes by name), and any entries that
            the folder's creator has added.
    """

    folder: Path
    card: dict[str, Any]

    @property
    def size(self) -> int:
        """Total size of the folder's files, in bytes."""
        return sum(self.card["files"].values())


def root() -> Path:
    """Return the cache folder; it may not exist yet.

    Raises:
        CacheError: Neither environment variable is set, and the user has no home directory.
    """
    if configured := os.environ.get(VARIABLE):
        return Path(configured).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(base) if base else Path.home() / ".cache") / "paceline"
    except RuntimeError as error:
        raise CacheError(
            "cache: the user has no home directory", f". Set {VARIABLE} to a writable folder."
        ) from error


def note_unwritable(reason: CacheError | OSError | str) -> None:
    """Log a warning, once per process, that the cache cannot be written."""
    global _noted
    if not _noted:
        _noted = True
        _log.warning(
            "paceline keeps compiled code and measurements in memory only, and every process"
            " repeats them: %s. Set %s to a writable folder.",
            reason.problem if isinstance(reason, CacheError) else reason,
            VARIABLE,
        )


def checksum(path: Path) -> str:
    """Return the SHA-256 checksum of a file.

    The function reads the file again only if its size or modification time has changed since the
    previous call.
    """
    stat = path.stat()
    return _checksum(path.absolute(), stat.st_size, stat.st_mtime_ns)


@lru_cache(maxsize=64)
def _checksum(path: Path, size: int, time_ns: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def obtain_folder(
    folder: Path, source: str, make: Callable[[Path], dict[str, Any]], waiting: Callable[[], None]
) -> Path:
    """Return a folder in the cache, creating it if it does not exist.

    Args:
        folder: Path of the folder.
        source: Description of the folder's source, for the metadata.
        make: Function that receives an empty folder, fills it, and returns additional entries for
            the metadata.
        waiting: Function that is called once if another process is already creating the folder.
    Raises:
        ConfigError: The cache cannot be written, or `make` raised the error. In either case, the
            folder is removed.
    """
    # Reading needs no lock: a folder with this name is complete, and the cache may be read-only.
    if _read(folder) is not None:
        return folder
    with _clear_errors(), _locked(folder, waiting):
        if _read(folder) is None:
            _fill(folder, source, make)
    return folder


def replace_folder(folder: Path, source: str, make: Callable[[Path], dict[str, Any]]) -> None:
    """Recreate a folder in the cache; see `obtain_folder` for the arguments."""
    with _clear_errors(), _locked(folder, lambda: None):
        _fill(folder, source, make)


def entries() -> list[CacheEntry]:
    """List the finished folders in the cache, oldest first.

    Raises:
        CacheError: The user has no cache folder (see `root`).
    """
    finished = [
        CacheEntry(path.parent, card)
        for path in root().glob(f"*/*/{CARD}")
        if (card := _read(path.parent)) is not None
    ]
    return sorted(finished, key=lambda entry: str(entry.card["made"]))


def clear() -> int:
    """Remove all finished and abandoned folders; return the number of bytes freed.

    Raises:
        ConfigError: The cache cannot be written.
    """
    freed = 0
    with _clear_errors():
        for folder in sorted(path for path in root().glob("*-v*/*") if _ENTRY.fullmatch(path.name)):
            with suppress(Timeout), _lock(folder).acquire(blocking=False):
                freed += _remove(folder)
    return freed


def _fill(folder: Path, source: str, make: Callable[[Path], dict[str, Any]]) -> None:
    """Fill the folder KEY.part, sync its files to disk, and rename it to KEY."""
    part = folder.with_suffix(".part")
    _remove(part)  # left over from a killed process
    _remove_leftovers(folder.parent)
    _remove(folder)  # damaged or outdated
    try:
        part.mkdir()
        card = make(part)
        files = {
            str(path.relative_to(part)): path.stat().st_size
            for path in sorted(part.rglob("*"))
            if path.is_file()
        }
        card = {
            "source": source,
            "sha256": folder.name,
            "made": time.strftime("%Y-%m-%d %H:%M:%S"),
            **card,
            "files": files,
        }
        (part / CARD).write_text(json.dumps(card, indent=1) + "\n", encoding="utf-8")
        for name in (*files, CARD):
            with (part / name).open("rb+") as file:
                os.fsync(file.fileno())
        part.rename(folder)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise


def _read(folder: Path) -> dict[str, Any] | None:
    """Return a folder's metadata; None if a file is missing or has a different size."""
    try:
        card: dict[str, Any] = parse_json((folder / CARD).read_bytes())
        complete = all(
            (folder / name).stat().st_size == size for name, size in card["files"].items()
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return card if complete and "made" in card else None


@contextmanager
def _locked(folder: Path, waiting: Callable[[], None]) -> Iterator[None]:
    """Hold the lock of a folder inside the `with` block.

    Args:
        folder: Path of the folder.
        waiting: Function that is called once if another process holds the lock.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    lock = _lock(folder)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        waiting()
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _lock(folder: Path) -> FileLock:
    """Return the lock that protects a folder KEY and the unfinished folder KEY.part."""
    # A soft lock would remain after its process was killed.
    return FileLock(folder.with_suffix(".lock"), mode=0o644, fallback_to_soft=False)


def _remove_leftovers(kind: Path) -> None:
    """Remove unfinished folders that killed processes have left behind."""
    for part in kind.glob("*.part"):
        with suppress(Timeout), _lock(part).acquire(blocking=False):
            _remove(part)


def _remove(folder: Path) -> int:
    """Remove a folder if it exists, and return the number of bytes freed."""
    if not folder.is_dir():
        return 0
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    shutil.rmtree(folder)
    return size


@contextmanager
def _clear_errors() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CacheError(
            f"cache: got {str(root())!r}, which cannot be used ({error})",
            f"; expected a writable folder with free space. Set {VARIABLE} to another one.",
        ) from error
