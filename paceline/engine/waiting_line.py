"""Requests that wait for a place in the batch: by priority, then by age."""

from __future__ import annotations

import threading
from bisect import insort
from collections.abc import Iterable, Iterator

from paceline.engine.ticket import Ticket


class WaitingLine:
    """Threads may join it while a step is made.

    Attributes:
        lock: held while it changes.
    """

    def __init__(self) -> None:
        self._tickets: list[Ticket] = []
        self.lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._tickets)

    def __iter__(self) -> Iterator[Ticket]:
        """As it is now."""
        return iter(self._tickets.copy())

    def join(self, tickets: Iterable[Ticket]) -> None:
        """Queue requests, also those that were preempted: they are as old as they are."""
        with self.lock:
            for ticket in tickets:
                insort(self._tickets, ticket, key=lambda one: one.rank)

    def first(self) -> Ticket | None:
        """Return the one whose turn it is."""
        tickets = self._tickets
        return tickets[0] if tickets else None

    def leave(self, ticket: Ticket) -> bool:
        """Take a request out; returns whether it was there."""
        with self.lock:
            if ticket not in self._tickets:
                return False
            self._tickets.remove(ticket)
            return True
