"""Delay Ctrl-C until the end of a step that several callers share."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def interrupts_held(hold: bool = True) -> Iterator[None]:
    """Delay Ctrl-C (SIGINT) until the context ends, and then call the signal handler.

    Args:
        hold: Whether to delay SIGINT. Outside the main thread, SIGINT is never delayed.
    """
    handler = signal.getsignal(signal.SIGINT)
    in_main_thread = threading.current_thread() is threading.main_thread()
    if not hold or not in_main_thread or not callable(handler):
        yield
        return
    caught: list[tuple[int, FrameType | None]] = []
    signal.signal(signal.SIGINT, lambda number, frame: caught.append((number, frame)))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if caught:
            handler(*caught[0])
