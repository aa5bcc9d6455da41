"""Describe the machine, the software versions and the system load during a run."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

import paceline
from paceline.util.machine import processor, usable_cores


@dataclass(frozen=True, slots=True)
class Environment:
    """The machine, the software versions and the system load during a run.

    Attributes:
        date: Start time in UTC, in ISO 8601 format.
        versions: Versions of python, torch, transformers and paceline.
        commit: Git commit of this package; None outside a Git repository.
        modified: Whether the checkout had uncommitted changes.
        platform: Operating system.
        processor: Name of the processor.
        cores: Number of logical processors that this process may use.
        accelerator: Name of the accelerator; None on the CPU.
        threads: Number of CPU threads that torch uses.
        load_start: Load averages over 1, 5 and 15 minutes at the start.
        load_end: Load averages at the end.
        peak_memory: Peak resident memory of the process so far, in bytes.
    """

    date: str
    versions: dict[str, str]
    commit: str | None
    modified: bool
    platform: str
    processor: str
    cores: int
    accelerator: str | None
    threads: int
    load_start: list[float]
    load_end: list[float]
    peak_memory: int

    @property
    def hardware(self) -> str:
        """Return the name of the accelerator, or the processor and its thread count."""
        return (
            self.accelerator
            or f"{self.processor}, {self.threads} thread{'s' if self.threads > 1 else ''}"
        )


def look_around(device: torch.device) -> Environment:
    """Describe the machine, the software versions and the current system load.

    torch's thread count must already be set.
    """
    commit, modified = _commit()
    load = load_average()
    return Environment(
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        versions={
            "python": platform.python_version(),
            "paceline": paceline.__version__,
            **_installed("torch", "transformers"),
        },
        commit=commit,
        modified=modified,
        platform=platform.platform(),
        processor=processor(),
        cores=usable_cores(),
        accelerator=torch.cuda.get_device_name(device) if device.type == "cuda" else None,
        threads=torch.get_num_threads(),
        load_start=load,
        load_end=load,
        peak_memory=peak_memory(),
    )


def load_average() -> list[float]:
    """Return load averages over 1, 5 and 15 minutes; empty if the system has none."""
    return [round(value, 2) for value in os.getloadavg()] if hasattr(os, "getloadavg") else []


def peak_memory() -> int:
    """Return the peak resident memory of this process in bytes; 0 if unknown."""
    try:
        import resource
    except ImportError:  # not a POSIX system
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _installed(*names: str) -> dict[str, str]:
    versions = {}
    for name in names:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = "unknown"
    return versions


def _commit() -> tuple[str | None, bool]:
    folder = str(Path(paceline.__file__).parent)
    if _git(folder, "ls-files", "--error-unmatch", "__init__.py") is None:  # another repository
        return None, False
    commit = _git(folder, "rev-parse", "HEAD")
    return commit, bool(_git(folder, "status", "--porcelain", "--untracked-files=no"))


def _git(folder: str, *arguments: str) -> str | None:
    try:
        process = subprocess.run(
            ["git", "-C", folder, *arguments],
            capture_output=True,
            text=True,
            timeout=10,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return process.stdout.strip() if process.returncode == 0 else None
