"""Keep the garbage collector away from objects that are never garbage."""

from __future__ import annotations

import atexit
import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collection_paused() -> Iterator[None]:
    """Pause the garbage collector inside the `with` block.

    The imports of torch and transformers belong in such a block. Otherwise, the collector examines
    the imported modules, classes and functions many times, although they are never garbage. The
    examination takes more than a quarter of the import time.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def exempt_until_exit() -> None:
    """Exempt all existing objects from garbage collection until the process exits.

    The process exits sooner, because Python does not free exempt objects. If triton is loaded, the
    exemption ends just before the exit; otherwise, triton 3.9 would report leaks.
    """
    gc.freeze()
    atexit.unregister(_end_exemption_for_triton)
    atexit.register(_end_exemption_for_triton)


def _end_exemption_for_triton() -> None:
    if "triton" in sys.modules:
        gc.unfreeze()


@contextmanager
def survivors_exempt() -> Iterator[None]:
    """Collect garbage, then exempt the surviving objects until the `with` block ends.

    The garbage collector ignores exempt objects. If other objects are already exempt, the block
    exempts nothing, because Python can only end the exemption of all objects at once.
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
