"""Provide thread pools and locks that work in forked child processes.

A forked child process has none of its parent's threads, so the pools start new threads in the
child. All compiled kernels share one pool, whose threads sleep while they have no work.
"""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from paceline.util.machine import usable_cores

# omp_pause_hard: OpenMP frees its threads, and the next parallel region starts new ones.
_PAUSE_HARD = 2


class Inherited(Protocol):
    """An object that each forked child process must reset."""

    def become_child(self) -> None:
        """Discard the parent's threads and locks, without starting new threads."""


_inherited: weakref.WeakSet[Inherited] = weakref.WeakSet()


def follow_forks(owner: Inherited) -> None:
    """Arrange for forked child processes to call `owner.become_child()`.

    The arrangement ends when `owner` is garbage-collected.
    """
    _inherited.add(owner)


class Threads:
    """A thread pool that starts on first use, separately in each forked child.

    Args:
        count: Maximum number of threads.
        name: Prefix of the threads' names.
    """

    def __init__(self, count: int, name: str) -> None:
        self._count, self._name = count, name
        self._executor: ThreadPoolExecutor | None = None
        follow_forks(self)

    @property
    def executor(self) -> ThreadPoolExecutor:
        """Return this process's thread pool, which is created on first use."""
        if self._executor is None:
            self._executor = ThreadPoolExecutor(self._count, self._name)
        return self._executor

    def submit(self, work: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Run `work(*arguments)` in a thread from the pool."""
        return self.executor.submit(work, *arguments)

    def shutdown(self) -> None:
        """Let the threads stop after their current work, without waiting for them."""
        if self._executor is not None:
            self._executor.shutdown(wait=False)

    def become_child(self) -> None:
        """Discard the parent's threads, which a forked child process does not have."""
        self._executor = None


class ForkableLock:
    """A lock that is free in a forked child, even if a thread of the parent held it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        follow_forks(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._lock.release()

    def become_child(self) -> None:
        """In a forked child process, replace the lock with a free one."""
        self._lock = threading.Lock()


_threads = Threads(max(1, usable_cores() - 1), "paceline")


def share(work: Callable[..., Any], arguments: tuple[Any, ...], helpers: int) -> None:
    """Run `work(*arguments)` in this thread and in helper threads at the same time.

    Args:
        work: Function that takes tasks from a shared counter until none are left. The function must
            release the interpreter lock.
        arguments: Arguments of the function.
        helpers: Maximum number of helper threads.
    """
    others = [submit(work, *arguments) for _ in range(helpers)]
    work(*arguments)
    for other in others:
        if not other.cancel():  # a helper that has not started is not needed
            other.result()


def submit(work: Callable[..., Any], *arguments: Any) -> Future[Any]:
    """Run `work(*arguments)` in a thread from the shared pool."""
    return _threads.submit(work, *arguments)


def _become_child() -> None:
    for owner in list(_inherited):
        owner.become_child()


def _release_openmp_threads() -> None:
    """Stop the OpenMP threads of the thread that is about to fork.

    Otherwise, libgomp in the child would wait forever for these threads.
    """
    with suppress(OSError, AttributeError):  # /proc is missing, or libgomp lacks OpenMP 5.0
        maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
        for library in {
            line.split(maxsplit=5)[5] for line in maps.splitlines() if "/libgomp" in line
        }:
            ctypes.CDLL(library).omp_pause_resource_all(_PAUSE_HARD)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_release_openmp_threads, after_in_child=_become_child)
