"""Threads of a process and of its forked children: a child has none of its parent's threads, so
pools are made anew there.

Compiled work shares one pool, whose threads wait and cost nothing.
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

_PAUSE_HARD = (
    2  # omp_pause_hard: OpenMP frees its threads; the next parallel region starts new ones
)


class Inherited(Protocol):
    """What a forked child has to set up anew."""

    def become_child(self) -> None:
        """Forget the threads and locks of the parent; starts no work."""


_inherited: weakref.WeakSet[Inherited] = weakref.WeakSet()


def follow_forks(one: Inherited) -> None:
    """Call `one.become_child()` in every process that is forked from now on, as long as `one`
    exists.
    """
    _inherited.add(one)


class Threads:
    """A thread pool that starts at its first use, and anew in a forked child.

    Args:
        count: most threads. name: prefix of their names.
    """

    def __init__(self, count: int, name: str) -> None:
        self._count, self._name = count, name
        self._executor: ThreadPoolExecutor | None = None
        follow_forks(self)

    @property
    def executor(self) -> ThreadPoolExecutor:
        """The pool of this process."""
        if self._executor is None:
            self._executor = ThreadPoolExecutor(self._count, self._name)
        return self._executor

    def submit(self, work: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Call `work(*arguments)` in a thread of the pool."""
        return self.executor.submit(work, *arguments)

    def shutdown(self) -> None:
        """End the threads when they have done their work; does not wait for them."""
        if self._executor is not None:
            self._executor.shutdown(wait=False)

    def become_child(self) -> None:
        """Forget the parent's threads."""
        self._executor = None


class ForkableLock:
    """A lock that is free in a forked child, whatever thread of the parent held it."""

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
        """Forget who held it."""
        self._lock = threading.Lock()


_threads = Threads(max(1, usable_cores() - 1), "paceline")


def share(work: Callable[..., Any], arguments: tuple[Any, ...], helpers: int) -> None:
    """Call `work(*arguments)` here and in up to `helpers` threads at once; it takes its tasks from
    a common counter.

    It must release the interpreter lock, and return when no task is left.
    """
    others = [submit(work, *arguments) for _ in range(helpers)]
    work(*arguments)
    for other in others:
        if not other.cancel():  # one that has not begun is not needed any more
            other.result()


def submit(work: Callable[..., Any], *arguments: Any) -> Future[Any]:
    """Have `work(*arguments)` called in another thread."""
    return _threads.submit(work, *arguments)


def _become_child() -> None:
    for one in list(_inherited):
        one.become_child()


def _release_openmp_threads() -> None:
    """End the OpenMP threads of the forking thread: in the child, libgomp would wait for them
    for ever.
    """
    with suppress(OSError, AttributeError):  # no /proc, or a libgomp older than OpenMP 5.0
        maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
        for library in {
            line.split(maxsplit=5)[5] for line in maps.splitlines() if "/libgomp" in line
        }:
            ctypes.CDLL(library).omp_pause_resource_all(_PAUSE_HARD)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_release_openmp_threads, after_in_child=_become_child)
