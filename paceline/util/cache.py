"""Folders made once and kept: whole or not there, made by one process at a time, listed and cleared
by `paceline cache`.

They lie below $PACELINE_CACHE, else $XDG_CACHE_HOME/paceline, else ~/.cache/paceline:
KIND-vFORMAT/KEY, where KEY is a checksum of what the folder was made from: a file, or the
circumstances under which something was found out. While one is made it is called KEY.part and its
lock KEY.lock is held; the lock dies with its process, so a KEY.part whose lock is free is the
leftover of a killed one.
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
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from filelock import FileLock, Timeout

from paceline.errors import ConfigError
from paceline.util.files import parse_json

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Found = TypeVar("Found", bound="DataclassInstance")
Kept = TypeVar("Kept")

VARIABLE = "PACELINE_CACHE"
CARD = "paceline.json"  # what a folder is: written last, with the size of every file
_log = logging.getLogger(__name__)
_unwritten: dict[
    tuple[str | None, CacheKey], Any
] = {}  # findings that could not be kept on disk, by $PACELINE_CACHE
_noted = False  # that nothing can be written
_OURS = re.compile(r"[0-9a-f]{64}(\.part)?")


class CacheError(ConfigError):
    """A cache that cannot be written, or that has no folder."""


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """A finished folder of the cache, and its card: source, sha256, made, files (name -> bytes),
    and what its maker added.
    """

    folder: Path
    card: dict[str, Any]

    @property
    def size(self) -> int:
        """Bytes of its files."""
        return sum(self.card["files"].values())


def root() -> Path:
    """Return the folder of the cache; it need not be there.

    Raises:
        CacheError: nothing says where it is, and the user has no home.
    """
    if named := os.environ.get(VARIABLE):
        return Path(named).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(base) if base else Path.home() / ".cache") / "paceline"
    except RuntimeError as error:
        raise CacheError(
            "cache: got a user without home; expected a folder that can be written. Set"
            f" {VARIABLE} to one."
        ) from error


def note_unwritable(reason: object) -> None:
    """Warn, once in a process, that what is made once and kept cannot be written."""
    global _noted
    if not _noted:
        _noted = True
        _log.warning(
            "paceline keeps compiled code and measurements in memory only, and every process makes"
            " them anew: %s. Set %s to a folder that can be written.",
            str(reason).split("; expected")[0].rstrip("."),
            VARIABLE,
        )


def checksum(path: Path) -> str:
    """Return the SHA-256 of a file; read again within one process only if size or time of the
    file changed.
    """
    stat = path.stat()
    return _checksum(path.absolute(), stat.st_size, stat.st_mtime_ns)


@lru_cache(maxsize=64)
def _checksum(path: Path, size: int, time_ns: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def obtain(
    kind: str, source: Path, make: Callable[[Path], dict[str, Any]], waiting: Callable[[], None]
) -> Path:
    """Return the folder made from `source`; make it first where it is not there yet.

    Args:
        kind: what is made, with the version of its form, as "gguf-v1".
        make: fills the empty folder it is given, and returns what its card shall say. Runs in one
            process at a time.
        waiting: called once if another process is at it.
    Raises:
        ConfigError: the cache cannot be written; and what `make` raises. Nothing stays behind then.
    """
    return _obtain(root() / kind / checksum(source), str(source), make, waiting)


@dataclass(frozen=True, slots=True)
class CacheKey:
    """Where a finding is kept.

    Attributes:
        kind: what was found out, with the version of its form, as "rows-v3".
        facts: the circumstances, all of them: others have a folder of their own.
        name: what it is called in the list. file: in its folder.
    """

    kind: str
    facts: str
    name: str
    file: str


def remember(
    place: CacheKey, find: Callable[[], Found], read: Callable[[dict[str, Any]], Found]
) -> Found:
    """Return what was found out under certain circumstances; find it out where it is not kept yet.

    Where the cache cannot be written, it is kept as long as the process lives.

    Args:
        find: returns a dataclass of values that JSON can hold.
        read: makes it from its attributes again.
    """
    return remember_bytes(place, find, _to_bytes, lambda content: read(parse_json(content)))


def remember_bytes(
    place: CacheKey,
    find: Callable[[], Kept],
    write: Callable[[Kept], bytes],
    read: Callable[[bytes], Kept],
) -> Kept:
    """As `remember`, in a form of the caller's: `read` raises a ValueError, LookupError or
    TypeError where a file is damaged.
    """
    found: list[Kept] = []

    def make(folder: Path) -> dict[str, Any]:
        found.append(find())
        (folder / place.file).write_bytes(write(found[0]))
        return {}

    key = os.environ.get(VARIABLE), place
    if key in _unwritten:
        return cast(Kept, _unwritten[key])
    try:
        return read(
            (_obtain(_folder(place), place.name, make, lambda: None) / place.file).read_bytes()
        )
    except (OSError, CacheError) as error:
        note_unwritable(error)
        _unwritten[key] = found[0] if found else find()
        return cast(Kept, _unwritten[key])
    except (ValueError, LookupError, TypeError):  # a damaged file
        return found[0] if found else find()


def recall(place: CacheKey, read: Callable[[dict[str, Any]], Found]) -> Found | None:
    """Return what is kept, as `remember` does; None where there is nothing."""
    key = os.environ.get(VARIABLE), place
    if key in _unwritten:
        return cast(Found, _unwritten[key])
    try:
        return read(parse_json((_folder(place) / place.file).read_bytes()))
    except (OSError, CacheError, ValueError, LookupError, TypeError):
        return None


def keep(place: CacheKey, found: DataclassInstance) -> None:
    """Keep a finding in the place of an earlier one, as `remember` does."""

    def make(folder: Path) -> dict[str, Any]:
        (folder / place.file).write_bytes(_to_bytes(found))
        return {}

    try:
        folder = _folder(place)
        with _refused_clearly(), _locked(folder, lambda: None):
            _fill(folder, place.name, make)
    except CacheError as error:
        note_unwritable(error)
        _unwritten[os.environ.get(VARIABLE), place] = found


def _folder(place: CacheKey) -> Path:
    return root() / place.kind / hashlib.sha256(place.facts.encode()).hexdigest()


def _to_bytes(found: DataclassInstance) -> bytes:
    return (json.dumps(asdict(found), indent=1) + "\n").encode()


def _obtain(
    folder: Path, source: str, make: Callable[[Path], dict[str, Any]], waiting: Callable[[], None]
) -> Path:
    if (
        _read(folder) is not None
    ):  # no lock: the folder appeared whole, and the cache may be one that can only be read
        return folder
    with _refused_clearly(), _locked(folder, waiting):
        if _read(folder) is None:
            _fill(folder, source, make)
    return folder


def entries() -> list[CacheEntry]:
    """Return what the cache holds, the oldest first.

    Raises:
        CacheError: as `root`.
    """
    found = [
        CacheEntry(path.parent, card)
        for path in root().glob(f"*/*/{CARD}")
        if (card := _read(path.parent)) is not None
    ]
    return sorted(found, key=lambda entry: str(entry.card["made"]))


def clear() -> int:
    """Remove everything that no process is making at the moment; return the bytes that became free.

    Raises:
        ConfigError: the cache cannot be written.
    """
    freed = 0
    with _refused_clearly():
        for folder in sorted(path for path in root().glob("*-v*/*") if _OURS.fullmatch(path.name)):
            with suppress(Timeout), _lock(folder).acquire(blocking=False):
                freed += _remove(folder)
    return freed


def _fill(folder: Path, source: str, make: Callable[[Path], dict[str, Any]]) -> None:
    """Make the folder beside its place and move it there."""
    part = folder.with_suffix(".part")
    _remove(part)  # of a killed process, as this one holds the lock
    _remove_leftovers(folder.parent)
    _remove(folder)  # damaged, or it would have been taken
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
    """Return the card of a folder; None if there is none, or its files are not as the card says."""
    try:
        card: dict[str, Any] = parse_json((folder / CARD).read_bytes())
        whole = all((folder / name).stat().st_size == size for name, size in card["files"].items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return card if whole and "made" in card else None


@contextmanager
def _locked(folder: Path, waiting: Callable[[], None]) -> Iterator[None]:
    """Hold the lock of a folder; wait while another process does."""
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
    """Return the lock of KEY and KEY.part. No soft one: it would stay behind when its process is
    killed.
    """
    return FileLock(folder.with_suffix(".lock"), mode=0o644, fallback_to_soft=False)


def _remove_leftovers(kind: Path) -> None:
    """Remove what killed processes left half made."""
    for part in kind.glob("*.part"):
        with suppress(Timeout), _lock(part).acquire(blocking=False):
            _remove(part)


def _remove(folder: Path) -> int:
    if not folder.is_dir():
        return 0
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    shutil.rmtree(folder)
    return size


@contextmanager
def _refused_clearly() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CacheError(
            f"cache: got {str(root())!r}, which cannot be used ({error}); expected a folder that"
            f" can be written and has room. Set {VARIABLE} to another one."
        ) from error
