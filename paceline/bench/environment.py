"""Where a run took place: versions, commit, processor, load. Everything a reader needs to judge
a number.
"""

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
    """The setting of a run.

    Attributes:
        date: start, UTC, ISO 8601.
        versions: of python, torch, transformers and paceline.
        commit: git commit of this package, None outside a repository; modified: whether the
            checkout had changes.
        processor, accelerator: names; accelerator is None on the CPU. cores: logical processors
            this process may use.
        threads: CPU threads of torch.
        load_start, load_end: load averages over 1, 5 and 15 minutes at the start and the end.
        peak_memory: largest resident size of the process so far, in bytes.
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
        """The device the models ran on, in words."""
        return (
            self.accelerator
            or f"{self.processor}, {self.threads} thread{'s' if self.threads > 1 else ''}"
        )


def look_around(device: torch.device) -> Environment:
    """The environment now; to be called with the run's thread count set."""
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
    """Load averages over 1, 5 and 15 minutes; empty where the system has none."""
    return [round(value, 2) for value in os.getloadavg()] if hasattr(os, "getloadavg") else []


def peak_memory() -> int:
    """Largest resident size of this process so far, in bytes; 0 where the system does not say."""
    try:
        import resource
    except ImportError:  # not a POSIX system
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _installed(*names: str) -> dict[str, str]:
    found = {}
    for name in names:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "unknown"
    return found


def _commit() -> tuple[str | None, bool]:
    here = str(Path(paceline.__file__).parent)
    if (
        _git(here, "ls-files", "--error-unmatch", "__init__.py") is None
    ):  # installed inside somebody else's repository
        return None, False
    commit = _git(here, "rev-parse", "HEAD")
    return commit, bool(_git(here, "status", "--porcelain", "--untracked-files=no"))


def _git(folder: str, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", folder, *arguments],
            capture_output=True,
            text=True,
            timeout=10,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
