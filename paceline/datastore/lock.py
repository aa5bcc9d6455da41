"""Lock a store for one writer, and record which process holds the lock.

The lock (`filelock`) is released automatically when the process that holds it ends.
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
    """Raised if another writer has locked the store; a later attempt may succeed."""


@contextmanager
def writing(path: Path, action: str) -> Iterator[None]:
    """Hold a store's writer lock during the `with` block.

    Args:
        path: Folder of the store.
        action: What the caller is doing. If another writer tries to take the lock, that writer's
            error message shows this text.
    Raises:
        LockedError: Another writer holds the lock. The error names the other writer's process and
            host, and the time at which that writer took the lock.
        DatastoreError: The folder cannot be written.
    """
    file = path / LOCK
    # A soft lock would remain after its process is killed, so there is no fallback to a soft lock.
    lock = FileLock(file, mode=0o644, blocking=False, fallback_to_soft=False)
    try:
        lock.acquire()
    except Timeout as error:
        raise LockedError(_locked_message(path, file)) from error
    except OSError as error:
        raise DatastoreError(
            f"the store {str(path)!r} cannot be written, because {LOCK} cannot be locked:"
            f" {error}. Change its permissions, or write to another folder."
        ) from error
    try:
        holder = {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "since": time.strftime("%Y-%m-%d %H:%M:%S"),
            "doing": action,
        }
        _write(file, json.dumps(holder))
        try:
            yield
        finally:
            _write(file, "")
    finally:
        lock.release()


def _write(file: Path, note: str) -> None:
    # The lock also works without the note, which may not fit on a full disk.
    with suppress(OSError):
        file.write_text(note, encoding="utf-8")


def _locked_message(path: Path, file: Path) -> str:
    try:
        holder = json.loads(file.read_bytes())
        writer = (
            f"Process {holder['pid']} on {holder['host']} since {holder['since']}"
            f" ({holder['doing']})"
        )
    except (OSError, ValueError, KeyError, TypeError):
        writer = "Another process"
    return (
        f"{writer} is writing the store {str(path)!r}, which allows only one writer at a time."
        " Wait for that process, or end it."
    )
