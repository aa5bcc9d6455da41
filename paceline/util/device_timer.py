"""Measure how long a device works on a series of calls."""

from __future__ import annotations

import time
from collections import deque
from types import TracebackType
from typing import Any

import torch


class DeviceTimer:
    """Context manager that adds up the device time of the calls in its `with` blocks.

    On CUDA, a call returns before its work is done. The timer therefore records CUDA events, which
    measure the time from the first to the last operation without waiting for the operations.

    Args:
        device: Device on which the calls run.
    """

    def __init__(self, device: torch.device) -> None:
        self._on_cuda = device.type == "cuda"
        self._seconds, self._begin = 0.0, 0.0
        self._first: Any = None
        self._open: deque[tuple[Any, Any]] = deque()  # events of calls that may not have ended

    def __enter__(self) -> None:
        if self._on_cuda:
            self._first = _recorded()
        else:
            self._begin = time.perf_counter()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._on_cuda:
            self._open.append((self._first, _recorded()))
            self._drain()
        else:
            self._seconds += time.perf_counter() - self._begin

    @property
    def seconds(self) -> float:
        """Return the total duration of the finished calls, in seconds."""
        self._drain()
        return self._seconds

    def _drain(self) -> None:
        while self._open and self._open[0][1].query():
            first, last = self._open.popleft()
            self._seconds += first.elapsed_time(last) / 1e3


def _recorded() -> Any:
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()
    return event
