"""Part profile: kernels, copies and waits of a decoding step, as the device's profiler sees them.

A trace of each measurement is written beside the results, for chrome://tracing or Perfetto.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import cache, partial
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from gpu_parts.clock import wait
from gpu_parts.end_to_end import Setting, engine, greedy
from gpu_parts.run import Case, Run, Values
from paceline.drafters import entry

_SKIPPED = 4  # steps before the profile: prefill, and the drafter's first trees
_SYNCHRONISE = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize")
_LAUNCH = ("cudaLaunchKernel", "cudaLaunchKernelExC", "cuLaunchKernel", "cudaGraphLaunch")
_TOP = 12
_CPU = torch.autograd.DeviceType.CPU  # type: ignore[attr-defined]


class Window:
    """Profile some steps of a call; an instance is the call's `progress`.

    Args:
        run: Options of the run.
    Attributes:
        profiler: The profiler.
        seconds: Wall-clock time of the profiled steps.
    """

    def __init__(self, run: Run) -> None:
        device = [ProfilerActivity.CUDA] if run.on_cuda else []
        self.profiler: Any = profile(activities=[ProfilerActivity.CPU, *device])
        self.seconds = 0.0
        self._run, self._steps, self._start = run, 0, 0.0

    def __call__(self, progress: object) -> None:
        """Count a step; start and stop the profiler."""
        self._steps += 1
        if self._steps == _SKIPPED:
            wait(self._run.device)
            self.profiler.start()
            self._start = time.perf_counter()
        elif self._steps == _SKIPPED + self._run.sizes.profiled_steps:
            wait(self._run.device)
            self.seconds = time.perf_counter() - self._start
            self.profiler.stop()


def cases(run: Run) -> Iterator[Case]:
    """Count kernels, copies and waits per step."""
    setting = cache(lambda: Setting(run))
    for batch in run.sizes.batches[:2]:
        for name in run.sizes.profiled:
            if entry(name).needs_draft_model and run.draft_model is None:
                continue
            yield Case(f"batch {batch}, {name}", partial(_profile, setting, batch, name))


def _profile(setting: Any, batch: int, name: str) -> Values:
    here: Setting = setting()
    run = here.run
    llm = engine(here, batch, name)
    prompts, others = here.prompts(batch)
    llm.generate(others, greedy(run.sizes.profiled_tokens))
    window = Window(run)
    llm.generate(prompts[:batch], greedy(run.sizes.profiled_tokens), progress=window)
    if not window.seconds:
        window.profiler.stop()
        raise RuntimeError("the answers ended before the profile did")
    if run.on_cuda:
        path = run.out / f"profile-{name}-{batch}.json.gz"
        window.profiler.export_chrome_trace(str(path))
    return _counts(window, run)


def _counts(window: Window, run: Run) -> Values:
    """Return counts and times per step, and the kernels that take longest in all."""
    steps, entries = run.sizes.profiled_steps, window.profiler.key_averages()
    on_host = [one for one in entries if one.device_type == _CPU]
    there = [one for one in entries if one.device_type != _CPU] or on_host

    def seconds(one: Any) -> float:
        time_us = one.self_device_time_total if run.on_cuda else one.self_cpu_time_total
        return float(time_us) / 1e6

    def calls(names: tuple[str, ...]) -> float:
        return float(sum(one.count for one in on_host if one.key in names)) / steps

    there.sort(key=seconds, reverse=True)
    copies = {one.key: one.count / steps for one in there if one.key.startswith("Memcpy")}
    return {
        "ms_per_step": 1e3 * window.seconds / steps,
        "device_ms_per_step": 1e3 * sum(map(seconds, there)) / steps,
        "launches": calls(_LAUNCH),
        "synchronises": calls(_SYNCHRONISE),
        "copies": [f"{count:.1f} {name}" for name, count in copies.items()],
        "kernels": [
            {"name": one.key[:120], "calls": one.count / steps, "ms": 1e3 * seconds(one) / steps}
            for one in there[:_TOP]
        ],
    }
