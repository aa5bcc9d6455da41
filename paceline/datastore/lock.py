"""One writer at a time: a lock that dies with its process (`filelock`), and a note beside it
that says who holds it.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from paceline.datastore.layout import LOCK
from paceline.errors import DatastoreError


class LockedError(DatastoreError):
    """Another writer holds the store; trying again later may do."""


@contextmanager
def writing(path: Path, doing: str) -> Iterator[None]:
    """Be the only writer of the store at `path`.

    Args:
        doing: what a second writer reads about this one.
    Raises:
        LockedError: another holds it; who, where and since when. DatastoreError: the folder cannot
            be written.
    """
    file = path / LOCK
    # No soft lock where the file system has none: it would stay behind when its process is killed.
    lock = FileLock(file, mode=0o644, blocking=False, fallback_to_soft=False)
    try:
        lock.acquire()
    except Timeout as error:
        raise LockedError(_held(path, file)) from error
    except OSError as error:
        raise DatastoreError(
            f"store {str(path)!r}: got a folder that cannot be written ({error}); expected one"
            f" where {LOCK} can be locked. Change its rights, or write elsewhere."
        ) from error
    try:
        holder = {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "since": time.strftime("%Y-%m-%d %H:%M:%S"),
            "doing": doing,
        }
        _write(file, json.dumps(holder))
        try:
            yield
        finally:
            _write(file, "")
    finally:
        lock.release()


def _write(file: Path, note: str) -> None:
    """Write the note, best effort: the lock holds without it, and a full disk may leave no room
    for it.
    """
    with suppress(OSError):
        file.write_text(note, encoding="utf-8")


def _held(path: Path, file: Path) -> str:
    try:
        holder = json.loads(file.read_bytes())
        who = (
            f"process {holder['pid']} on {holder['host']} since {holder['since']}"
            f" ({holder['doing']})"
        )
    except (OSError, ValueError, KeyError, TypeError):
        who = "another process"
    return (
        f"store {str(path)!r}: got a second writer; expected one at a time, and it is {who}. Wait"
        " for it, or end it."
    )
