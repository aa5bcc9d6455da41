"""Import large packages without running the garbage collector."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collection_paused() -> Iterator[None]:
    """Pause the garbage collector inside the `with` block.

    Imported modules, classes and functions are never garbage. While torch and transformers are
    imported, the collector would examine these objects many times. This takes more than a quarter
    of the import time.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
