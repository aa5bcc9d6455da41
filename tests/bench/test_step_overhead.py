"""Test `scripts/step_overhead.py`, which measures the host time of decode steps."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SCRIPTS = Path(__file__).parents[2] / "scripts"
CODE = """
from step_overhead import DeviceClock, cpu_backend
backend = cpu_backend()
names = ("argmax", "topk", "row_mover")
originals = [getattr(backend, name) for name in names]
with DeviceClock():
    assert all(getattr(backend, name) != was for name, was in zip(names, originals))
assert [getattr(backend, name) for name in names] == originals
"""


def test_the_device_clock_restores_the_backend() -> None:
    """Importing the script replaces the clock, so this runs in a new process."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(SCRIPTS), *sys.path])}
    subprocess.run([sys.executable, "-c", CODE], check=True, env=environment)
