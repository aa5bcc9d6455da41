"""A cache of the suite's own, shared by its processes, and costs that no clock decides."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from pathlib import Path

# Of a model so slow that the time of tiny drafts is nothing beside it.
COST_CURVE = Path(__file__).parents[1] / "data" / "cost_curve.json"


def isolate() -> None:
    """Set the environment; workers of pytest-xdist, and commands that tests start, inherit it."""
    os.environ["PACELINE_COST_CURVE"] = str(COST_CURVE)
    if "PYTEST_XDIST_WORKER" in os.environ:
        return
    folder, owner = tempfile.mkdtemp(prefix="paceline-tests-"), os.getpid()
    os.environ["PACELINE_CACHE"] = folder

    def remove() -> None:
        if os.getpid() == owner:  # a child that was forked leaves it
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)
