"""What the machine has for this process."""

from __future__ import annotations

import os


def usable_cores() -> int:
    """Return the cores this process may run on, at least 1: those it is bound to where the system tells, else all."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
