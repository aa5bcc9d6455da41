"""Part tests: run the tests that need a GPU."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from gpu_parts.run import Case, Run, Values

_ROOT = Path(__file__).parents[2]
_LAST_CHARACTERS = 6000
_COUNTS = re.compile(r"\d+ (passed|skipped|failed|error)")
_MARK = "pytest.mark.gpu"  # other files may need packages that the machine lacks


def cases(run: Run) -> Iterator[Case]:
    """Run the tests that need a GPU."""
    yield Case("pytest -m gpu", lambda: _pytest(run))


def _pytest(run: Run) -> Values:
    """Run the tests in a new process, and stop the process after the time limit."""
    files = [str(path) for path in _ROOT.glob("tests/**/test_*.py") if _MARK in path.read_text()]
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "--durations=5", *files]
    path = run.out / "tests.log"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        process = subprocess.Popen(command, cwd=_ROOT, stdout=file, stderr=subprocess.STDOUT)
        try:
            status: int | None = process.wait(run.sizes.test_seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            status = None
    log = path.read_text("utf-8", errors="replace")
    lines = log.strip().splitlines() or [""]
    failed = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
    return {
        "status": status,
        "summary": next((line for line in reversed(lines) if _COUNTS.search(line)), lines[-1]),
        "failed": failed,
        "log": log[-_LAST_CHARACTERS:],
    }
