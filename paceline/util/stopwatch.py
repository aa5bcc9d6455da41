"""How long work on a model takes, and how much other programs disturbed it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class TimingSettings:
    """When timings are trusted, checked and replaced.

    Attributes:
        least_rounds, most_rounds: repeats of a measurement; more than the least while the two
            shortest ones disagree.
        agreement: relative difference below which the two shortest repeats agree.
        quiet_wait: share of the time without a processor, up to which a measurement counts as
            quiet.
        quiet_spread: relative distance of the quartiles of repeats, up to which it counts as quiet.
        check_rows: numbers of rows that a check of a cost curve times, the first 1; check_rounds:
            repeats of it.
        check_seconds: most seconds that a check may be expected to take; a slower model is not
            checked.
        most_off: relative difference in the cost of rows, up to which a check confirms a curve.
        first_pause_s: seconds of use until a curve is checked again; each later pause is twice as
            long.
        disturbed_pause_s: the same for a curve that was disturbed; its pauses grow up to
            `first_pause_s`.
        renewal_seconds: most seconds of a measurement that replaces a curve in use.
        load_drop: fall of the load average after which disturbed products, or a slow model, are
            timed again.
    """

    least_rounds: int = 3
    most_rounds: int = 9
    agreement: float = 0.03
    quiet_wait: float = 0.05
    quiet_spread: float = 0.1
    check_rows: tuple[int, ...] = (1, 8, 32)
    check_rounds: int = 3
    check_seconds: float = 1.0
    most_off: float = 0.15
    first_pause_s: float = 60.0
    disturbed_pause_s: float = 5.0
    renewal_seconds: float = 2.0
    load_drop: float = 0.5


TIMING = TimingSettings()


@dataclass(frozen=True, slots=True)
class Conditions:
    """The conditions under which something was timed.

    Attributes:
        spread: relative distance of the quartiles of repeats, the median over all that was timed.
        waited: share of the time in which the work had no processor, 0 to 1; None where it is
            unknown, as on an accelerator.
        load: load average of the machine over the last minute; None where the system has none.
        made: seconds since the epoch.
    """

    spread: float
    waited: float | None
    load: float | None
    made: float

    @property
    def quiet(self) -> bool:
        """Whether the timing can be trusted: nothing disturbed it noticeably."""
        return self.spread <= TIMING.quiet_spread and (self.waited or 0.0) <= TIMING.quiet_wait

    @property
    def calmer_now(self) -> bool:
        """Whether a new timing promises to be quieter: the load has fallen since, or is unknown."""
        now = load_average()
        return now is None or self.load is None or now <= self.load - TIMING.load_drop

    @classmethod
    def of(cls, spreads: Iterable[float], stopwatch: Stopwatch) -> Conditions:
        """Return the conditions of what a stopwatch has timed; `spreads` of each kind of work."""
        return cls(median(spreads), stopwatch.waited, load_average(), time.time())

    @classmethod
    def read(cls, kept: dict[str, Any]) -> Conditions:
        """Make it from its attributes again."""
        return cls(**kept)


def clock_of(device: torch.device) -> Callable[[], float]:
    """Return the clock by which work on a model is timed, in seconds, here and in the same thread.

    One thread on a CPU has a clock of its own, which stands still while another program has the
    processor: a disturbed call then takes hardly longer than others. Elsewhere the wall-clock
    counts.
    """
    alone = device.type == "cpu" and torch.get_num_threads() == 1
    return (
        time.thread_time
        if alone and time.get_clock_info("thread_time").resolution < 1e-6
        else time.perf_counter
    )


class Stopwatch:
    """Times calls that work on a model, by the clock of `clock_of`.

    Args:
        device: of the model.
        shared: several threads of a CPU that other programs use as well: the processor time of the
            threads counts, evenly shared. It is right where all of them work all the time, and
            comparable in any case, which the wall-clock is not there.
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
        """Return one for a machine that is as busy as during a few calls."""
        watch = cls(device)
        for _ in range(TIMING.least_rounds):
            watch.seconds(call)
        return cls(device, shared=(watch.waited or 0.0) > TIMING.quiet_wait)

    def seconds(self, call: Callable[[], object]) -> float:
        """Return the seconds of one call, which must end only when its result is there."""
        start, begin = time.perf_counter(), self._clock()
        call()
        taken = self._clock() - begin
        self._wall += time.perf_counter() - start
        self._counted += taken
        return taken

    @property
    def waited(self) -> float | None:
        """The share of the time in which work waited for a processor; None where it is unknown."""
        if self._one_thread:
            return max(0.0, 1 - self._counted / self._wall) if self._wall else None
        delay = None if self._delay is None else _queued()
        if delay is None or self._delay is None:
            return None
        # Of several threads, since the stopwatch was made; those that have ended take their part
        # with them.
        return max(0.0, delay - self._delay) / (self._threads * (time.perf_counter() - self._begin))


def spread_of(repeats: Sequence[float]) -> float:
    """Return the distance of the quartiles of repeats over the lower one."""
    if len(repeats) < 2:
        return 0.0
    lower, _, upper = quantiles(repeats, n=4, method="inclusive")
    return (upper - lower) / lower


def agree(repeats: Sequence[float]) -> bool:
    """Whether there are enough repeats, since the two shortest are as good as equal."""
    if len(repeats) < TIMING.least_rounds:
        return False
    shortest, second = sorted(repeats)[:2]
    return second <= (1 + TIMING.agreement) * shortest


def _queued() -> float | None:
    """Return the seconds that all threads of this process have waited for a processor; None
    where the system does not say.
    """
    try:
        files = [task / "schedstat" for task in Path("/proc/self/task").iterdir()]
        return sum(int(file.read_text().split()[1]) for file in files) / 1e9
    except (OSError, ValueError, IndexError):
        return None


def load_average() -> float | None:
    """Return the load of the machine over the last minute; None where the system does not say."""
    try:
        return round(os.getloadavg()[0], 2)
    except (OSError, AttributeError):
        return None
