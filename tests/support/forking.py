"""Run functions in a forked child of this process."""

from __future__ import annotations

import os
import signal
import time
import traceback
import warnings
from collections.abc import Callable


def in_child(work: Callable[[], str], seconds: float = 30.0) -> str:
    """Return the result of `work()` in a forked child, or the error that it raises.

    Fails if the child takes longer than `seconds`.
    """
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        # Python 3.12 warns about forks of a process with threads, which is what these tests do.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        try:
            found = work()
        except BaseException as error:
            found = f"{type(error).__name__}: {error}"
            traceback.print_exc()
        os.write(writing, found.encode())
        os._exit(0)
    os.close(writing)
    try:
        until = time.monotonic() + seconds
        while os.waitpid(child, os.WNOHANG)[0] == 0:
            if time.monotonic() > until:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                raise AssertionError("the child waits for ever")
            time.sleep(0.02)
        return os.read(reading, 1 << 16).decode()
    finally:
        os.close(reading)
