"""Peak memory of each method, measured in a process of its own that does nothing else.

On Linux the high-water mark is reset once the models are loaded, so loading does not hide what
decoding takes.
"""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

from paceline.bench.environment import peak_memory
from paceline.bench.run import run_bench
from paceline.bench.settings import BenchConfig
from paceline.errors import PacelineError
from paceline.util.options import changed, flat

_CLEAR = Path("/proc/self/clear_refs")
_STATUS = Path("/proc/self/status")


def memory_by_method(config: BenchConfig) -> dict[str, int]:
    """Peak resident bytes of every baseline and drafter of `config`, each in a fresh process.

    Raises:
        PacelineError: a process failed; its last words are in the message.
    """
    peaks = {}
    for name in (*config.baselines, *config.drafters):
        ours = name in config.drafters
        one = dataclasses.replace(
            config, baselines=() if ours else (name,), drafters=(name,) if ours else ()
        )
        done = subprocess.run(
            [sys.executable, "-m", "paceline.bench.memory", json.dumps(flat(one))],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            last = done.stderr.strip().splitlines()[-1:] or ["no message"]
            raise PacelineError(
                f"measuring the memory of {name!r} failed with status {done.returncode}: {last[0]}"
            )
        peaks[name] = int(done.stdout.split()[-1])
    return peaks


def reset_peak() -> None:
    """Let the high-water mark start from the present size, where the system can."""
    if _CLEAR.exists():
        _CLEAR.write_text("5", encoding="ascii")


def peak_since_reset() -> int:
    """Peak resident bytes since `reset_peak`, or of the whole process where it cannot be reset."""
    return _status("VmHWM:") or peak_memory()


def resident() -> int:
    """Resident bytes of this process now, or their peak where the system does not tell."""
    return _status("VmRSS:") or peak_memory()


def _main() -> None:
    run_bench(changed(BenchConfig(), **json.loads(sys.argv[1])), progress=False, loaded=reset_peak)
    print(peak_since_reset())


def _status(name: str) -> int:
    """A size in bytes that Linux tells of this process; 0 where it does not."""
    lines = _STATUS.read_text(encoding="ascii").splitlines() if _STATUS.exists() else []
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(name)), 0)


if __name__ == "__main__":
    _main()
