"""Exempt modules and models, which are never garbage, from garbage collection."""

from __future__ import annotations

import atexit
import gc
import sys
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


def exempt_until_exit() -> None:
    """Exempt all present objects from garbage collection until the process ends.

    With exempt objects, the process ends sooner, because Python does not free them. But if triton
    is loaded, the exemption ends first: triton 3.9 lists objects that are not freed as leaks.
    """
    gc.freeze()
    atexit.unregister(_end_exemption_for_triton)
    atexit.register(_end_exemption_for_triton)


def _end_exemption_for_triton() -> None:
    if "triton" in sys.modules:
        gc.unfreeze()


@contextmanager
def survivors_exempt() -> Iterator[None]:
    """Collect garbage, then exempt surviving objects until the `with` block ends.

    The garbage collector ignores exempt objects. If some objects are already exempt, the block
    exempts no more, because Python can only end the exemption of all objects at once.
    """
    gc.collect()
    if gc.get_freeze_count():
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
