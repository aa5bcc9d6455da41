"""Files that appear whole or not at all, output into devices and pipes, and the checksum of what
JSON files say.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from paceline.errors import ConfigError
from paceline.util.text_files import MARK

STANDARD_OUTPUT = Path("-")
_DESCRIPTORS = {"-": 1, "/dev/stdout": 1, "/dev/stderr": 2}
_LONGEST_PREFIX = (
    32  # of the name of a temporary file, so that every name that may be a file's can be written
)


def write_atomically(path: str | Path, content: bytes) -> None:
    """Put `content` in the place of what is at `path`; whoever reads there, or a crash, finds the
    old file or the new one.

    A link is followed. What is no regular file (a device, a pipe), and the standard streams ("-" is
    standard output), is written straight: nothing else ever takes its place.

    Raises:
        ConfigError: it cannot be written; a regular file that was there stays.
    """
    path = Path(path)
    with _refusals(path):
        if _is_straight(path):
            _write_straight(path, content)
            return
        path = Path(os.path.realpath(path))
        path.parent.mkdir(parents=True, exist_ok=True)
        mode = stat.S_IMODE(path.stat().st_mode) if path.exists() else 0o644
        handle, temporary = _temporary(path)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            Path(temporary).chmod(mode)
            os.replace(temporary, path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise


def append(path: str | Path, content: bytes) -> None:
    """Write `content` behind what a file holds; devices and standard streams as in
    `write_atomically`.

    Raises:
        ConfigError: it cannot be written.
    """
    with _refusals(path):
        if _is_straight(Path(path)):
            _write_straight(Path(path), content)
            return
        with open(path, "ab") as file:
            file.write(content)


def require_writable(path: str | Path) -> None:
    """Refuse, before any work, a path at which `write_atomically` could not leave a file; nothing
    is left behind by asking.

    Raises:
        ConfigError: there is no such folder, it is a folder, or there is no right to write there.
    """
    path = Path(path)
    with _refusals(path):
        if _is_straight(path):
            if _descriptor(path) is None and not os.access(path, os.W_OK):
                raise PermissionError("it may not be written")
            return
        real = Path(os.path.realpath(path))
        if not real.parent.is_dir():
            raise ConfigError(
                f"cannot write {str(path)!r}: there is no folder {str(real.parent)!r}. Make it"
                " first."
            )
        if real.exists() and not os.access(real, os.W_OK):
            raise PermissionError("it may not be written")
        handle, temporary = _temporary(real)
        os.close(handle)
        Path(temporary).unlink()


def make_folder(path: str | Path) -> None:
    """Make a folder, before any work, that files can be written in; one that is there will do.

    Raises:
        ConfigError: it cannot be made, or there is no right to write in it.
    """
    with _refusals(path):
        Path(path).mkdir(parents=True, exist_ok=True)
    require_writable(Path(path) / "result")


def parse_json(content: str | bytes) -> Any:
    """Return what JSON of anybody's says, with or without a byte order mark.

    Raises:
        ValueError: it is none, or nested more deeply than can be read.
    """
    try:
        return json.loads(content.removeprefix(MARK) if isinstance(content, str) else content)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def digest_of(content: dict[str, Any]) -> str:
    """SHA-256 over everything in a JSON document, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _is_straight(path: Path) -> bool:
    """Whether a path is no place for a regular file: a standard stream, a device, a pipe; a folder
    is refused.

    Raises:
        OSError: a folder, a circle of links, a name that no file can have.
    """
    if _descriptor(path) is not None:
        return True
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return False
    if stat.S_ISDIR(mode):
        raise IsADirectoryError("it is a folder")
    return not stat.S_ISREG(mode)


def _descriptor(path: Path) -> int | None:
    """The standard stream that a path means, by its name or as the very file that the stream
    goes to.
    """
    if str(path) in _DESCRIPTORS:
        return _DESCRIPTORS[str(path)]
    for number in (1, 2):
        try:
            if os.path.samestat(os.stat(path), os.fstat(number)):
                return number
        except (OSError, ValueError):  # no such file, or a closed stream
            continue
    return None


def _write_straight(path: Path, content: bytes) -> None:
    number = _descriptor(path)
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    handle = os.open(path, os.O_WRONLY) if number is None else os.dup(number)
    with os.fdopen(handle, "wb", buffering=0) as file:
        rest = memoryview(content)
        while rest:
            rest = rest[file.write(rest) :]


def _temporary(path: Path) -> tuple[int, str]:
    return tempfile.mkstemp(dir=path.parent, prefix=path.name[:_LONGEST_PREFIX], suffix=".tmp")


@contextmanager
def _refusals(path: str | Path) -> Iterator[None]:
    """What the system refuses, in our words."""
    try:
        yield
    except (BrokenPipeError, ConfigError):  # whoever read it has left, or it is said already
        raise
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise ConfigError(
            f"cannot write {str(path)!r}: {reason}. Name a file that can be written."
        ) from error
