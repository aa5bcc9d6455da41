"""Measure the peak memory of each method in a separate process.

On Linux, the recorded peak is reset after the models are loaded, so that it covers only decoding.
"""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

from paceline.bench.environment import peak_memory
from paceline.bench.run import RunOptions, run_bench
from paceline.bench.settings import BenchConfig
from paceline.errors import PacelineError
from paceline.util.options import changed, flat

_CLEAR = Path("/proc/self/clear_refs")
_STATUS = Path("/proc/self/status")


def memory_by_method(config: BenchConfig) -> dict[str, int]:
    """Return the peak resident memory, in bytes, of every baseline and drafter.

    Raises:
        PacelineError: A process failed; the message contains the process's last line.
    """
    peaks = {}
    for name in (*config.baselines, *config.drafters):
        is_drafter = name in config.drafters
        single = dataclasses.replace(
            config, baselines=() if is_drafter else (name,), drafters=(name,) if is_drafter else ()
        )
        process = subprocess.run(
            [sys.executable, "-m", "paceline.bench.memory", json.dumps(flat(single))],
            capture_output=True,
            text=True,
            check=False,
        )
        if process.returncode:
            last = process.stderr.strip().splitlines()[-1:] or ["no message"]
            raise PacelineError(
                f"measuring the memory of {name!r} failed with status {process.returncode}:"
                f" {last[0]}"
            )
        peaks[name] = int(process.stdout.split()[-1])
    return peaks


def reset_peak() -> None:
    """Reset the recorded peak to the current memory use, if the system supports this."""
    if _CLEAR.exists():
        _CLEAR.write_text("5", encoding="ascii")


def peak_since_reset() -> int:
    """Return the peak memory since `reset_peak`, or the process's peak if unknown."""
    return _status("VmHWM:") or peak_memory()


def resident() -> int:
    """Return this process's resident memory in bytes; if unknown, its peak."""
    return _status("VmRSS:") or peak_memory()


def _main() -> None:
    config = changed(BenchConfig(), **json.loads(sys.argv[1]))
    run_bench(config, progress=False, options=RunOptions(loaded=reset_peak))
    print(peak_since_reset())


def _status(name: str) -> int:
    """Read one of this process's memory sizes on Linux, in bytes; return 0 elsewhere."""
    lines = _STATUS.read_text(encoding="ascii").splitlines() if _STATUS.exists() else []
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(name)), 0)


if __name__ == "__main__":
    _main()
