"""Write files atomically, append to them, and parse JSON."""

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
# Maximum length of a temporary file's prefix, in characters. A longer prefix could exceed the
# file system's limit on the length of a name.
_MAX_PREFIX = 32


def write_atomically(path: str | Path, content: bytes) -> None:
    """Write a file atomically, so that readers see either the old or the new content.

    If the path is a link, the function writes to the link's target. It writes directly to devices,
    pipes and standard streams, and never replaces them.

    Args:
        path: Path of the file, or "-" for standard output.
        content: Bytes to write.
    Raises:
        ConfigError: The file cannot be written. An existing regular file does not change.
    """
    path = Path(path)
    with _clear_errors(path):
        if _is_stream(path):
            _write_to_stream(path, content)
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
    """Append to a file, device, pipe or standard stream.

    Args:
        path: Path of the file, or "-" for standard output.
        content: Bytes to append.
    Raises:
        ConfigError: The file cannot be written.
    """
    with _clear_errors(path):
        if _is_stream(Path(path)):
            _write_to_stream(Path(path), content)
            return
        with open(path, "ab") as file:
            file.write(content)


def require_writable(path: str | Path) -> None:
    """Check that `write_atomically` can write to a path.

    For a regular file, the check creates and removes a temporary file in the same folder.

    Raises:
        ConfigError: The folder does not exist, the path is a folder, or permissions are missing.
    """
    path = Path(path)
    with _clear_errors(path):
        if _is_stream(path):
            if _descriptor(path) is None and not os.access(path, os.W_OK):
                raise PermissionError("it is not writable")
            return
        real = Path(os.path.realpath(path))
        if not real.parent.is_dir():
            raise ConfigError(
                f"cannot write {str(path)!r}: there is no folder {str(real.parent)!r}. Create it"
                " first."
            )
        if real.exists() and not os.access(real, os.W_OK):
            raise PermissionError("it is not writable")
        handle, temporary = _temporary(real)
        os.close(handle)
        Path(temporary).unlink()


def make_folder(path: str | Path) -> None:
    """Create a folder if it does not exist, and check that it is writable.

    Raises:
        ConfigError: The folder cannot be created, or permissions are missing.
    """
    with _clear_errors(path):
        Path(path).mkdir(parents=True, exist_ok=True)
    require_writable(Path(path) / "result")


def parse_json(content: str | bytes) -> Any:
    """Parse JSON from an untrusted source, with or without a byte order mark.

    Raises:
        ValueError: The content is not valid JSON, or is nested too deeply.
    """
    try:
        return json.loads(content.removeprefix(MARK) if isinstance(content, str) else content)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def parse_json_line(line: str) -> Any:
    """Parse one line of a JSON Lines file.

    Raises:
        ValueError: The line is not valid JSON; the message names the column but no line.
    """
    try:
        # json reports an error at the end after the line's end, and thus in the next line.
        return parse_json(line.rstrip("\r\n"))
    except json.JSONDecodeError as error:
        raise ValueError(f"{error.msg} at column {error.colno}") from error


def digest_of(content: dict[str, Any]) -> str:
    """Return the SHA-256 checksum of a JSON document, regardless of its key order."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _is_stream(path: Path) -> bool:
    """Return whether a path is a standard stream, a device or a pipe.

    Raises:
        OSError: The path is a folder or an invalid name, or its links form a cycle.
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
    """Return the descriptor of the standard stream at a path; None for other files.

    If a standard stream is redirected to a file, the path of that file also counts as the stream.
    """
    if str(path) in _DESCRIPTORS:
        return _DESCRIPTORS[str(path)]
    for number in (1, 2):
        try:
            if os.path.samestat(os.stat(path), os.fstat(number)):
                return number
        except (OSError, ValueError):  # the file does not exist, or the stream is closed
            continue
    return None


def _write_to_stream(path: Path, content: bytes) -> None:
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
    return tempfile.mkstemp(dir=path.parent, prefix=path.name[:_MAX_PREFIX], suffix=".tmp")


@contextmanager
def _clear_errors(path: str | Path) -> Iterator[None]:
    """Convert system errors in the `with` block to `ConfigError`.

    Args:
        path: Path that the block writes to, for the message.
    """
    try:
        yield
    except (BrokenPipeError, ConfigError):  # the pipe has no reader, or the message is complete
        raise
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise ConfigError(
            f"cannot write {str(path)!r}: {reason}. Choose a file that can be written."
        ) from error
