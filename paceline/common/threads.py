"""Helpers for compiled work that any number of threads may share: one pool for all of it, threads that wait and cost nothing."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from paceline.common.machine import usable_cores

_threads: ThreadPoolExecutor | None = None


def share(work: Callable[..., Any], arguments: tuple[Any, ...], helpers: int) -> None:
    """Call `work(*arguments)` here and in up to `helpers` threads at once; it takes its tasks from a common counter.

    It must release the interpreter lock, and return when no task is left.
    """
    others = [submit(work, *arguments) for _ in range(helpers)]
    work(*arguments)
    for other in others:
        if not other.cancel():  # one that has not begun is not needed any more
            other.result()


def submit(work: Callable[..., Any], *arguments: Any) -> Future[Any]:
    """Have `work(*arguments)` called in another thread."""
    global _threads
    if _threads is None:
        _threads = ThreadPoolExecutor(max(1, usable_cores() - 1), "paceline")
    return _threads.submit(work, *arguments)


def _forget_threads() -> None:
    """In the child of a fork, which has none of its parent's threads."""
    global _threads
    _threads = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_threads)
