"""Stubs for events, streams and graphs of `torch.cuda`."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor

from tests.support.cuda_operations import Operations, leaves
from tests.support.traffic import Traffic

FREE_BYTES, TOTAL_BYTES = 60 << 30, 80 << 30


class Event:
    """Stub for `torch.cuda.Event`.

    Args:
        traffic: Log of waits and copies.
        enable_timing: Ignored.
    """

    def __init__(self, traffic: Traffic, enable_timing: bool = False) -> None:
        self._traffic = traffic
        self._waits, self._time = 0, 0.0

    def record(self, stream: object = None) -> None:
        """Remember what has been launched so far."""
        self._waits, self._time = self._traffic.waits, time.perf_counter()

    def query(self) -> bool:
        """Return whether the device is known to have reached the event."""
        return self._traffic.waits > self._waits

    def synchronize(self) -> None:
        """Wait for the event, unless a later wait has already covered it."""
        if not self.query():
            self._traffic.wait("torch.cuda.Event.synchronize")

    def elapsed_time(self, end: Event) -> float:
        """Return the milliseconds until another event, measured on the host."""
        return 1e3 * (end._time - self._time)


class Stream:
    """Stub for `torch.cuda.Stream`, on which all work runs at once."""

    def wait_stream(self, stream: Stream) -> None:
        """Do nothing."""


class Graph:
    """Stub for `torch.cuda.CUDAGraph` that repeats operations on the captured tensors.

    Args:
        traffic: Log of waits and copies; graphs may cause neither.
        operations: Mode that runs the operations.
    """

    def __init__(self, traffic: Traffic, operations: Operations) -> None:
        self._traffic, self._operations = traffic, operations
        self._captured: list[tuple[Any, Any, dict[str, Any], Any]] = []

    def capture_begin(self, pool: object = None, capture_error_mode: str = "global") -> None:
        """Record all operations from now on."""
        self._traffic.is_forbidden, self._operations.captured = True, self._captured

    def capture_end(self) -> None:
        """Stop recording."""
        self._traffic.is_forbidden, self._operations.captured = False, None

    @torch.inference_mode()
    def replay(self) -> None:
        """Run the operations again, with results at the captured addresses."""
        for func, args, kwargs, result in self._captured:
            again = func(*args, **kwargs)
            for old, new in zip(leaves(result), leaves(again), strict=True):
                if isinstance(old, Tensor) and old.data_ptr() != new.data_ptr():
                    old.copy_(new)


def cuda_stubs(traffic: Traffic, operations: Operations) -> dict[str, Callable[..., Any]]:
    """Return stubs for functions and classes of `torch.cuda`, by name."""
    return {
        "_lazy_init": lambda: None,
        "is_available": lambda: True,
        "current_device": lambda: 0,
        "get_device_name": lambda device=None: "simulated",
        "mem_get_info": lambda device=None: (FREE_BYTES, TOTAL_BYTES),
        "synchronize": lambda device=None: traffic.wait("torch.cuda.synchronize"),
        "Event": partial(Event, traffic),
        "Stream": Stream,
        "CUDAGraph": partial(Graph, traffic, operations),
        "stream": lambda stream: nullcontext(),
        "current_stream": lambda device=None: Stream(),
        "graph_pool_handle": lambda: None,
    }
