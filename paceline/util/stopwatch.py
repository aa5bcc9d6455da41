"""Time calls of a model, and measure how much other programs interfere."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import torch

from paceline.util.timing_settings import TIMING


@dataclass(frozen=True, slots=True)
class Conditions:
    """Describes how much other programs interfered with a measurement.

    Attributes:
        spread: Relative spread of the repeated times of a call (`spread_of`). For a measurement of
            several calls, the median of their spreads.
        waited: Fraction of the time that the work spent waiting for a processor, from 0 to 1. None
            if unknown, as on an accelerator.
        load: The machine's load average over the last minute; None if the system does not report a
            load average.
        made: Time of the measurement, in seconds since 1970.
    """

    spread: float
    waited: float | None
    load: float | None
    made: float

    @property
    def quiet(self) -> bool:
        """Return whether other programs barely affected the measurement."""
        return self.spread <= TIMING.quiet_spread and (self.waited or 0.0) <= TIMING.quiet_wait

    @property
    def calmer_now(self) -> bool:
        """Return whether the load is unknown or has fallen since the measurement."""
        now = load_average()
        return now is None or self.load is None or now <= self.load - TIMING.load_drop

    @property
    def doubtful(self) -> bool:
        """Return whether the measurement was disturbed and the machine is quieter now."""
        return not self.quiet and self.calmer_now

    @classmethod
    def of(cls, spreads: Iterable[float], stopwatch: Stopwatch) -> Conditions:
        """Describe the conditions of a measurement that has just ended.

        Args:
            spreads: For each measured call, the spread of its repeated times (`spread_of`).
            stopwatch: Stopwatch that timed the calls.
        """
        return cls(median(spreads), stopwatch.waited, load_average(), time.time())

    @classmethod
    def read(cls, attributes: dict[str, Any]) -> Conditions:
        """Rebuild a `Conditions` object from saved attributes."""
        return cls(**attributes)


def clock_of(device: torch.device) -> Callable[[], float]:
    """Return a clock, in seconds, for timing a model's calls in this thread.

    If torch uses a single CPU thread, the clock measures the thread's processor time. Processor
    time does not advance while another program uses the processor, so other programs barely affect
    the measurement. In all other cases, the function returns the wall clock.
    """
    alone = device.type == "cpu" and torch.get_num_threads() == 1
    return (
        time.thread_time
        if alone and time.get_clock_info("thread_time").resolution < 1e-6
        else time.perf_counter
    )


class Stopwatch:
    """Times calls that run on a model, using the clock from `clock_of`.

    Args:
        device: Device of the model.
        shared: Whether other programs also use the processor. If so, and if torch uses
            several threads, the stopwatch measures the mean processor time per thread. The mean is
            exact if all threads are always busy. If some threads are idle, the mean is still
            comparable between runs, unlike wall-clock time.
    """

    def __init__(self, device: torch.device, shared: bool = False) -> None:
        self._clock, self._threads = clock_of(device), torch.get_num_threads()
        self._one_thread = self._clock is not time.perf_counter
        if shared and not self._one_thread:
            self._clock = lambda: time.process_time() / self._threads
        self._counted = self._wall = 0.0
        self._begin, self._delay = time.perf_counter(), _queued() if device.type == "cpu" else None

    @classmethod
    def suited(cls, device: torch.device, call: Callable[[], object]) -> Stopwatch:
        """Time a few calls to judge the machine's load, and return a suitable stopwatch."""
        watch = cls(device)
        for _ in range(TIMING.min_rounds):
            watch.seconds(call)
        return cls(device, shared=(watch.waited or 0.0) > TIMING.quiet_wait)

    def seconds(self, call: Callable[[], object]) -> float:
        """Return the duration of one call.

        The call must not return before its work is done.
        """
        start, begin = time.perf_counter(), self._clock()
        call()
        taken = self._clock() - begin
        self._wall += time.perf_counter() - start
        self._counted += taken
        return taken

    @property
    def waited(self) -> float | None:
        """Return the fraction of time spent waiting for a processor; None if unknown."""
        if self._one_thread:
            return max(0.0, 1 - self._counted / self._wall) if self._wall else None
        delay = None if self._delay is None else _queued()
        if delay is None or self._delay is None:
            return None
        # Mean over all running threads since the stopwatch was created.
        return max(0.0, delay - self._delay) / (self._threads * (time.perf_counter() - self._begin))


def spread_of(repeats: Sequence[float]) -> float:
    """Return the relative spread of times: interquartile range / lower quartile."""
    if len(repeats) < 2:
        return 0.0
    lower, _, upper = quantiles(repeats, n=4, method="inclusive")
    return (upper - lower) / lower


def agree(repeats: Sequence[float]) -> bool:
    """Return whether the two shortest of the repeated times are nearly equal."""
    if len(repeats) < TIMING.min_rounds:
        return False
    shortest, second = sorted(repeats)[:2]
    return second <= (1 + TIMING.agreement) * shortest


def _queued() -> float | None:
    """Return how long this process's threads have waited for a processor, in seconds.

    The result is None if the system does not report waiting times.
    """
    try:
        files = [task / "schedstat" for task in Path("/proc/self/task").iterdir()]
        return sum(int(file.read_text().split()[1]) for file in files) / 1e9
    except (OSError, ValueError, IndexError):
        return None


def load_average() -> float | None:
    """Return the machine's load average over the last minute; None if unknown."""
    try:
        return round(os.getloadavg()[0], 2)
    except (OSError, AttributeError):
        return None
