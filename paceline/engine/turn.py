"""The lock under which an engine changes its state, and what a forked child makes of it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Protocol

from paceline.errors import ConfigError
from paceline.util.threads import follow_forks


class Lock(Protocol):
    """What both kinds of lock of `threading` can do."""

    def acquire(self, blocking: bool = ...) -> bool:
        """Take it; returns whether that was possible."""

    def release(self) -> None:
        """Give it back."""


class Turn:
    """One thread at a time; it may take its turn again inside.

    In a child that was forked while a thread of the parent was inside, the state of the engine is
    half changed and that thread does not exist: every call is refused there.

    Args:
        others: returns the further locks, if any, under which that state is changed.
    Attributes:
        torn: this process is such a child.
        inherited: requests that were open at the fork are still in the engine; the parent answers
            them.
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
        """Refuse a child whose engine cannot be used.

        Raises:
            ConfigError: a thread of the parent was changing the engine when this process was
                forked.
        """
        if self.torn:
            raise ConfigError(
                "got a call in a process that was forked while another thread used this model;"
                " expected none, as the fork copied a half-made step. Fork while no request is"
                " open, or load the model in the child."
            )

    def become_child(self) -> None:
        """Find out whether the engine can be used in this child."""
        self.torn = self.torn or not all(map(_is_free, (self._lock, *self._others())))
        self.inherited = True


def _is_free(lock: Lock) -> bool:
    """Whether a lock is free, or held by this thread where it may take it again."""
    if not lock.acquire(blocking=False):
        return False
    lock.release()
    return True
