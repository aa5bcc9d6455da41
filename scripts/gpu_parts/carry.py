"""List the packages that a machine without an index needs brought along."""

from __future__ import annotations

import importlib.metadata
import re
import tomllib
from pathlib import Path

from gpu_parts.settings import CARRIED, CARRIED_FOR_GGUF, CARRIED_FOR_TESTS

_ROOT = Path(__file__).parents[2]
_WHEELS = ".wheels"


def missing() -> list[str]:
    """Return paceline's requirements that are not installed here, or older than required."""
    with (_ROOT / "pyproject.toml").open("rb") as file:
        lines = tomllib.load(file)["project"]["dependencies"]
    lacking = []
    for line in lines:
        name, _, lowest = line.partition(">=")
        try:
            found = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            lacking.append(f"{line} (not installed)")
            continue
        if _numbers(found) < _numbers(lowest):
            lacking.append(f"{line} (found {found})")
    return lacking


def advice() -> str:
    """Return what to carry, and how to fetch and install it."""
    platforms = " ".join(
        f"--platform manylinux{name}_x86_64" for name in ("_2_28", "_2_17", "2014", "1")
    )
    return f"""Carry: {" ".join(CARRIED)}
For --model with a GGUF file also: {" ".join(CARRIED_FOR_GGUF)}
For the part tests also, if missing: {" ".join(CARRIED_FOR_TESTS)}

Fetch the wheels where there is an index:
  python -m pip download --no-deps --only-binary=:all: --python-version 3.12 \\
    --implementation cp {platforms} -d {_WHEELS} {" ".join(CARRIED)}

Install them on the machine with the GPU:
  python -m pip install -q --no-index --no-deps --no-compile --target /tmp/site {_WHEELS}/*.whl
  export PYTHONPATH=/tmp/site:$PWD

Missing on this machine: {", ".join(missing()) or "nothing"}"""


def _numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version.partition("+")[0])[:3]]
