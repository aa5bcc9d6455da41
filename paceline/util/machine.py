"""Describe the processor, cores and memory that this process can use."""

from __future__ import annotations

import os
import platform
from functools import cache
from pathlib import Path

# Instruction sets that determine the choice of kernels, as named in /proc/cpuinfo: x86, then ARM.
_INSTRUCTION_SETS = (
    *(
        "sse4_2",
        "avx",
        "avx2",
        "fma",
        "f16c",
        "avx512f",
        "avx512bw",
        "avx512vl",
        "avx512_vnni",
        "avx512_bf16",
        "avx512_fp16",
    ),
    *(
        "amx_tile",
        "amx_bf16",
        "amx_int8",
        "avx_vnni",
        "asimd",
        "asimdhp",
        "asimddp",
        "bf16",
        "i8mm",
        "sve",
        "sve2",
    ),
)


def on_x86() -> bool:
    """Return whether this machine has a 64-bit x86 processor."""
    return platform.machine() in ("x86_64", "AMD64")


def usable_cores() -> int:
    """Return the number of cores on which this process may run; at least 1.

    If the system does not report the process's CPU affinity, all cores count.
    """
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def processor() -> str:
    """Return the processor's model name, as the system reports it."""
    return _described("model name") or platform.processor() or platform.machine()


def instruction_flags() -> list[str]:
    """Return the processor's instruction sets that influence the choice of kernels.

    The list is empty if the system does not report instruction sets.
    """
    flags = set((_described("flags") or _described("Features")).split())
    return [name for name in _INSTRUCTION_SETS if name in flags]


@cache
def _described(wanted: str) -> str:
    """Return the first value of a field in /proc/cpuinfo, or "" if there is none."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip() == wanted and value.strip():
            return value.strip()
    return ""


def available_memory() -> int:
    """Return the free memory in bytes, or 0 if the system does not report it."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0
    free = next((line.split()[1] for line in lines if line.startswith("MemAvailable:")), "0")
    return int(free) * 1024
