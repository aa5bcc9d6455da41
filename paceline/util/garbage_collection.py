"""Import large packages without running the garbage collector."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collection_paused() -> Iterator[None]:
    """Pause the collection of reference cycles inside the context.

    Modules, classes and functions are never garbage. When torch and transformers are imported, the
    collector examines their objects many times, which takes more than a quarter of the time.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
