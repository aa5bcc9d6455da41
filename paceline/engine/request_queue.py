"""Queue the requests waiting for a cache slot, ordered by priority, then age."""

from __future__ import annotations

import threading
from bisect import insort
from collections.abc import Iterable, Iterator
from operator import attrgetter

from paceline.engine.request_handle import RequestHandle


class RequestQueue:
    """The requests waiting for a slot, ordered by priority, then age.

    Any thread may add requests to the queue, even during a step.

    Attributes:
        lock: Lock that is held while the queue changes.
    """

    def __init__(self) -> None:
        self._handles: list[RequestHandle] = []
        self.lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._handles)

    def __iter__(self) -> Iterator[RequestHandle]:
        """Iterate over a copy of the queue."""
        return iter(self._handles.copy())

    def join(self, handles: Iterable[RequestHandle]) -> None:
        """Queue requests; preempted requests return to their earlier position."""
        with self.lock:
            for handle in handles:
                insort(self._handles, handle, key=attrgetter("rank"))

    def first(self) -> RequestHandle | None:
        """Return the request to be admitted next, or None."""
        handles = self._handles
        return handles[0] if handles else None

    def leave(self, handle: RequestHandle) -> bool:
        """Remove a request, and return whether it was in the queue."""
        with self.lock:
            if handle not in self._handles:
                return False
            self._handles.remove(handle)
            return True
