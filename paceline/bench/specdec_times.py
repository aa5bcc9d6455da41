"""What a forward of either model takes, by the regression of SpecDec++ (Huang et al. 2024, section 4.2)."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from paceline.bench.result import BenchResult
from paceline.bench.specdec_costs import ForwardTimes, Work, fit_times


@dataclass(frozen=True, slots=True)
class SettingTimes:
    """One row of table 2.

    Attributes:
        wall: seconds per forward. processor: likewise in processor time, which other jobs on the machine disturb less.
    """

    setting: str
    wall: ForwardTimes | None
    processor: ForwardTimes | None

    @staticmethod
    def of(setting: str, result: BenchResult, methods: Iterable[str], drafting: bool = False) -> SettingTimes:
        """From the answers of those methods.

        Args:
            drafting: they are the draft model's own, by itself.
        """
        names = list(methods)
        fits = [fit_times(works(result, names, processor)) for processor in (False, True)]
        if drafting:
            fits = [fit and dataclasses.replace(fit, draft=fit.target, target=None) for fit in fits]
        return SettingTimes(setting, *fits)

    @staticmethod
    def read(values: dict[str, Any]) -> SettingTimes:
        """From its JSON form."""
        fits = [values[name] and ForwardTimes(**values[name]) for name in ("wall", "processor")]
        return SettingTimes(values["setting"], *fits)


def works(result: BenchResult, methods: Iterable[str], processor: bool = False) -> list[Work]:
    """Forwards and time of every answer of those methods.

    Args:
        processor: processor time, which other jobs on the machine disturb less, in place of wall clock.
    """
    wanted = set(methods)
    calls = [call for call in result.calls if call.method in wanted and len(call.rows) == 1]
    return [
        Work(counts.draft_forwards, counts.target_forwards, call.cpu_seconds if processor else call.seconds)
        for call in calls
        if (counts := call.rows[0].counts) is not None
    ]
