"""Isolate the test suite: a separate cache, and costs that depend on no clock."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from pathlib import Path

# Costs of a model so slow that the time of tiny drafts is negligible.
COST_CURVE = Path(__file__).parents[1] / "data" / "cost_curve.json"


def isolate() -> None:
    """Set environment variables that xdist workers and commands inherit."""
    os.environ["PACELINE_COST_CURVE"] = str(COST_CURVE)
    if "PYTEST_XDIST_WORKER" in os.environ:
        return
    folder, owner = tempfile.mkdtemp(prefix="paceline-tests-"), os.getpid()
    os.environ["PACELINE_CACHE"] = folder

    def remove() -> None:
        if os.getpid() == owner:  # forked children keep the folder
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)
