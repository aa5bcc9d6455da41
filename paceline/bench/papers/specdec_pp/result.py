"""What is measured of the SpecDec++ paper (Huang, Guo, Wang 2024)."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from paceline.bench.papers.part import BenchPart
from paceline.bench.papers.specdec_pp.options import SpecDecConfig
from paceline.bench.result import BenchResult, MethodFigures

IN_FIXED, IN_HEAD, IN_BOTH = "SpecDec, fixed K", "SpecDec++", "both together"  # settings of table 2
TARGET_ALONE, DRAFT_ALONE = "target alone", "draft alone"


@dataclass(frozen=True, slots=True)
class RulePoint:
    """A rule for the length of drafts: what it discards, and how often the target must run, both
    per new token.
    """

    method: str
    discard_rate: float
    verification_rate: float

    @staticmethod
    def of(part: BenchPart, method: str | None) -> RulePoint | None:
        """Return the rates of a method; None if it did not run."""
        figures = part.method(method)
        if figures is None or figures.verification_rate is None or figures.discard_rate is None:
            return None
        return RulePoint(figures.method, figures.discard_rate, figures.verification_rate)


@dataclass(frozen=True, slots=True)
class ForwardTimes:
    """Seconds per forward, fitted to `answers` answers; None for a model that did not run.

    Attributes:
        r_squared: share of the times' variance that the fit explains; None where all answers took
            equally many forwards.
    """

    draft: float | None
    target: float | None
    r_squared: float | None
    answers: int


@dataclass(frozen=True, slots=True)
class SettingTimes:
    """One row of table 2.

    Attributes:
        wall: seconds per forward. processor: likewise in processor time, which other jobs on the
            machine disturb less.
    """

    setting: str
    wall: ForwardTimes | None
    processor: ForwardTimes | None


@dataclass(frozen=True, slots=True)
class Sweep:
    """One run with its figures per set of prompts besides."""

    part: BenchPart
    sets: dict[str, tuple[MethodFigures, ...]]

    @staticmethod
    def of(label: str, result: BenchResult) -> Sweep:
        """Make it from a finished, or interrupted, run."""
        names = result.categories
        sets = {name: tuple(result.figures(name)) for name in names} if len(names) > 1 else {}
        return Sweep(BenchPart.of(label, result), sets)

    def of_set(self, name: str | None) -> BenchPart:
        """Return the figures over one set, none where it has no answer; None = over all prompts."""
        return (
            self.part
            if name is None
            else dataclasses.replace(self.part, figures=self.sets.get(name, ()))
        )

    def points(self, methods: Iterable[str], name: str | None = None) -> list[RulePoint]:
        """Return the rates of those methods that were measured, in their order, over one set or
        all prompts.
        """
        part = self.of_set(name)
        return [point for method in methods if (point := RulePoint.of(part, method)) is not None]


@dataclass(frozen=True, slots=True)
class HeadRow:
    """A head and the methods that measured it.

    Attributes:
        methods: one per threshold.
        depth, reject_weight: D and w_rej. calibration_error, roc_area: on prompts it was not
            trained on. None = not known.
    """

    label: str
    methods: dict[str, str]
    depth: int | None
    reject_weight: float | None
    calibration_error: float | None
    roc_area: float | None


@dataclass(frozen=True, slots=True)
class SpecDecResult:
    """What was measured; None or empty is what came after an interruption.

    Attributes:
        counts: rates of all rules, figure 4. heads: those that came, or the shipped one.
        seen: prompts of figure 4 that the first head was trained or calibrated on.
        timed: of tables 1 and 2 and section 2.1. alone: the draft model by itself. times: of
            forwards, table 2.
        stands_alone: False = it reads the target's states and says nothing by itself.
        grid: heads trained on recordings; grid_heads: their rows.
    """

    title: ClassVar[str] = "SpecDec++ (Huang, Guo, Wang, 2024)"

    config: SpecDecConfig
    counts: Sweep
    heads: tuple[HeadRow, ...]
    seen: int = 0
    timed: Sweep | None = None
    alone: BenchPart | None = None
    times: tuple[SettingTimes, ...] = ()
    grid: Sweep | None = None
    grid_heads: tuple[HeadRow, ...] = ()
    stands_alone: bool = True

    @property
    def parts(self) -> list[BenchPart]:
        """The runs of the pair that there were."""
        return [sweep.part for sweep in (self.counts, self.timed, self.grid) if sweep is not None]

    @property
    def complete(self) -> bool:
        """Whether all of it was measured."""
        alone = self.alone is not None or not self.stands_alone
        return (
            self.timed is not None
            and alone
            and (self.grid is not None or not self.config.recording)
            and self.unbroken
        )

    @property
    def unbroken(self) -> bool:
        """Whether none of the runs so far was interrupted."""
        return all(part.complete for part in (*self.parts, self.alone) if part is not None)

    @property
    def timed_part(self) -> BenchPart | None:
        """The run of tables 1 and 2, over all prompts."""
        return self.timed.part if self.timed is not None else None

    @property
    def pair_times(self) -> tuple[float, float] | None:
        """Seconds of a draft and a target forward in speculative decoding, fitted to the answers
        of both settings together.
        """
        both = next((one.wall for one in self.times if one.setting == IN_BOTH), None)
        if (
            both is None
            or both.draft is None
            or both.target is None
            or min(both.draft, both.target) <= 0
        ):
            return None
        return both.draft, both.target
