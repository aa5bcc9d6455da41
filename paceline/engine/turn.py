"""Lock an engine while its state changes, and detect forks during a change.

A fork during a change leaves the child process with an inconsistent engine.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Protocol

from paceline.errors import ConfigError
from paceline.util.threads import follow_forks


class Lock(Protocol):
    """The interface of the locks `threading.Lock` and `threading.RLock`."""

    def acquire(self, blocking: bool = ...) -> bool:
        """Acquire the lock.

        Args:
            blocking: Whether to wait until the lock is free.
        Returns:
            Whether the lock was acquired.
        """

    def release(self) -> None:
        """Release the lock, so that other threads can acquire it."""


class Turn:
    """A re-entrant lock that lets one thread at a time change the engine.

    If a process forks while another thread holds the lock, the engine is inconsistent in the child
    process. Every call to the engine in the child process then raises an error.

    Args:
        others: Function that returns additional locks that protect the engine's state.
    Attributes:
        torn: Whether this process is a forked child with an inconsistent engine.
        inherited: Whether this process is a forked child, and the engine may still contain requests
            of the parent process, which completes them.
    """

    def __init__(self, others: Callable[[], list[Lock]]) -> None:
        self._others = others
        self._lock = threading.RLock()
        self.torn = self.inherited = False
        follow_forks(self)

    def __enter__(self) -> None:
        self.check()
        self._lock.acquire()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._lock.release()

    def check(self) -> None:
        """Raise an error in a child process whose engine cannot be used.

        Raises:
            ConfigError: A thread of the parent was changing the engine when this process was
                forked.
        """
        if self.torn:
            raise ConfigError(
                "got a call in a process that was forked while another thread used this model,"
                " so the copied state is incomplete. Fork while no request is open, or load the"
                " model in the child."
            )

    def become_child(self) -> None:
        """Determine whether this new child process can use its copy of the engine."""
        self.torn = self.torn or not all(map(_is_free, (self._lock, *self._others())))
        self.inherited = True


def _is_free(lock: Lock) -> bool:
    """Return whether this thread can acquire a lock without waiting."""
    if not lock.acquire(blocking=False):
        return False
    lock.release()
    return True
