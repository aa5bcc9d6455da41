"""Log waits for a simulated device and copies, with the responsible lines."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

import paceline

_ROOT = str(Path(paceline.__file__).parent) + "/"


class Caller(NamedTuple):
    """The innermost line of paceline that caused an event."""

    file: str
    function: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line} ({self.function})"


class Event(NamedTuple):
    """A wait, a copy, or both.

    Attributes:
        what: What happened.
        caller: Line that caused it.
        waits: Whether the host waits for the device.
        up: Bytes copied to the device; None = no copy to it.
        down: Bytes copied from the device; None = no copy from it.
    """

    what: str
    caller: Caller
    waits: bool
    up: int | None = None
    down: int | None = None


@dataclass(slots=True)
class Traffic:
    """Log of events in the order in which they happened.

    Attributes:
        events: Events since the last call of `take`.
        waits: Number of waits so far.
        launches: Number of operations launched one by one so far, without those in graphs.
        is_forbidden: Whether a wait or a copy raises, as during graph capture.
        helpers: Files for which the log names the caller instead.
    """

    events: list[Event] = field(default_factory=list)
    waits: int = 0
    launches: int = 0
    is_forbidden: bool = False
    helpers: frozenset[str] = frozenset({"util/device_copies.py"})

    def caller(self) -> Caller:
        """Return the innermost line of paceline."""
        frame = sys._getframe(1)
        while frame.f_back is not None:
            name = frame.f_code.co_filename
            if name.startswith(_ROOT) and name[len(_ROOT) :] not in self.helpers:
                return Caller(name[len(_ROOT) :], frame.f_code.co_name, frame.f_lineno)
            frame = frame.f_back
        return Caller("elsewhere", "", 0)

    def wait(self, what: str) -> None:
        """Log a wait without a copy."""
        self._log(Event(what, self.caller(), True))

    def upload(self, tensor: Tensor, what: str, waits: bool) -> None:
        """Log a copy to the device."""
        self._log(Event(what, self.caller(), waits, up=_size(tensor)))

    def download(self, tensor: Tensor, what: str, waits: bool) -> None:
        """Log a copy from the device."""
        self._log(Event(what, self.caller(), waits, down=_size(tensor)))

    def _log(self, event: Event) -> None:
        if self.is_forbidden:
            raise RuntimeError(f"not permitted in a graph: {event.what} at {event.caller}")
        self.events.append(event)
        self.waits += event.waits

    def take(self) -> list[Event]:
        """Return the events since the last call."""
        taken, self.events = self.events, []
        return taken


def _size(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def num_waits(events: Iterable[Event]) -> int:
    """Return how often the host waits."""
    return sum(event.waits for event in events)


def bytes_down(events: Iterable[Event]) -> int:
    """Return how many bytes are copied from the device."""
    return sum(event.down or 0 for event in events)
