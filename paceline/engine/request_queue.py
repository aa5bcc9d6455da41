"""Requests that wait for a place in the batch: by priority, then by age."""

from __future__ import annotations

import threading
from bisect import insort
from collections.abc import Iterable, Iterator

from paceline.engine.request_handle import RequestHandle


class RequestQueue:
    """Threads may join it while a step is made.

    Attributes:
        lock: held while it changes.
    """

    def __init__(self) -> None:
        self._tickets: list[RequestHandle] = []
        self.lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._tickets)

    def __iter__(self) -> Iterator[RequestHandle]:
        """As it is now."""
        return iter(self._tickets.copy())

    def join(self, handles: Iterable[RequestHandle]) -> None:
        """Queue requests, also those that were preempted: they are as old as they are."""
        with self.lock:
            for handle in handles:
                insort(self._tickets, handle, key=lambda one: one.rank)

    def first(self) -> RequestHandle | None:
        """Return the one whose turn it is."""
        handles = self._tickets
        return handles[0] if handles else None

    def leave(self, handle: RequestHandle) -> bool:
        """Take a request out; returns whether it was there."""
        with self.lock:
            if handle not in self._tickets:
                return False
            self._tickets.remove(handle)
            return True
