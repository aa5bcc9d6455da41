"""One writer at a time: a lock that dies with its process, and says who holds it."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from paceline.datastore.layout import LOCK
from paceline.errors import DatastoreError


class LockedError(DatastoreError):
    """Another writer holds the store; trying again later may do."""


@contextmanager
def writing(path: Path, doing: str) -> Iterator[None]:
    """Be the only writer of the store at `path`.

    Args:
        doing: what a second writer is told.
    Raises:
        LockedError: another holds it; who, where and since when. DatastoreError: the folder cannot be written.
    """
    try:
        handle = os.open(path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise DatastoreError(f"store {str(path)!r} cannot be written: {error}.") from error
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise LockedError(_held(path, os.pread(handle, 4096, 0))) from error
        holder = {"pid": os.getpid(), "host": socket.gethostname(), "since": time.strftime("%Y-%m-%d %H:%M:%S"), "doing": doing}
        _write(handle, json.dumps(holder).encode())
        try:
            yield
        finally:
            _write(handle, b"")
    finally:
        os.close(handle)


def _write(handle: int, content: bytes) -> None:
    """Best effort: the lock holds without its note, which a full disk may leave no room for."""
    try:
        os.ftruncate(handle, 0)
        os.pwrite(handle, content, 0)
    except OSError:
        return


def _held(path: Path, note: bytes) -> str:
    try:
        holder = json.loads(note)
        who = f"process {holder['pid']} on {holder['host']} since {holder['since']} ({holder['doing']})"
    except (ValueError, KeyError, TypeError):
        who = "another process"
    return f"store {str(path)!r} is being written by {who}. One writer at a time is allowed: wait for it, or end it."
