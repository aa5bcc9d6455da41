"""Store the results for the SpecDec++ paper (Huang, Guo, Wang 2024)."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from paceline.bench.result import BenchResult, MethodFigures
from papers.part import BenchPart
from papers.specdec_pp.options import SpecDecConfig

IN_FIXED, IN_HEAD, IN_BOTH = "SpecDec, fixed K", "SpecDec++", "both together"  # settings of table 2
TARGET_ALONE, DRAFT_ALONE = "target alone", "draft alone"


@dataclass(frozen=True, slots=True)
class RulePoint:
    """The discard rate and the verification rate of a length rule, per new token.

    Attributes:
        method: Name of the method.
        discard_rate: Number of rejected draft tokens per new token.
        verification_rate: Number of target forward passes per new token.
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
    """Durations of forward passes, fitted to answers; None if a model did not run.

    Attributes:
        draft, target: Duration of a forward pass of each model, in seconds.
        r_squared: Share of the variance in time that the fit explains; None if all answers took the
            same number of forward passes.
        answers: Number of answers.
    """

    draft: float | None
    target: float | None
    r_squared: float | None
    answers: int


@dataclass(frozen=True, slots=True)
class SettingTimes:
    """A row of table 2.

    Attributes:
        setting: Name of the setting.
        wall: Fit to wall-clock times.
        processor: Fit to processor times, which depend less on other jobs on the machine.
    """

    setting: str
    wall: ForwardTimes | None
    processor: ForwardTimes | None


@dataclass(frozen=True, slots=True)
class Sweep:
    """A run, and its figures for each set of prompts."""

    part: BenchPart
    sets: dict[str, tuple[MethodFigures, ...]]

    @staticmethod
    def of(label: str, result: BenchResult) -> Sweep:
        """Build a sweep from a finished or interrupted run."""
        names = result.categories
        sets = {name: tuple(result.figures(name)) for name in names} if len(names) > 1 else {}
        return Sweep(BenchPart.of(label, result), sets)

    def of_set(self, name: str | None) -> BenchPart:
        """Return the run with the figures of one set only; None selects all prompts."""
        return (
            self.part
            if name is None
            else dataclasses.replace(self.part, figures=self.sets.get(name, ()))
        )

    def points(self, methods: Iterable[str], name: str | None = None) -> list[RulePoint]:
        """Return the rates of the measured methods, in order."""
        part = self.of_set(name)
        return [point for method in methods if (point := RulePoint.of(part, method)) is not None]


@dataclass(frozen=True, slots=True)
class HeadRow:
    """A head, its methods and its quality; None for unknown values.

    Attributes:
        label: Name of the head.
        methods: Name of the method for each threshold.
        depth: Number of hidden layers in the head, D.
        reject_weight: Weight that rejected tokens had in training, w_rej.
        calibration_error: Expected calibration error (ECE) on held-out prompts.
        roc_area: Area under the ROC curve on held-out prompts.
    """

    label: str
    methods: dict[str, str]
    depth: int | None
    reject_weight: float | None
    calibration_error: float | None
    roc_area: float | None


@dataclass(frozen=True, slots=True)
class SpecDecResult:
    """Results for the paper; fields that were not measured are None or empty.

    Attributes:
        config: Configuration of the measurement.
        counts: Run with the rates of all rules (figure 4).
        heads: The given heads, or the built-in head.
        seen: Number of prompts of figure 4 with which the first head was trained or calibrated.
        timed: Timed run for tables 1 and 2 and for section 2.1.
        alone: Run of the draft model alone.
        times: Durations of forward passes (table 2).
        grid: Run with the heads that were trained on the recordings.
        grid_heads: Table rows of the trained heads.
        stands_alone: Whether the draft model can run alone. It cannot if it needs the target's
            hidden states.
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
        """Return the measured runs that use both models."""
        return [sweep.part for sweep in (self.counts, self.timed, self.grid) if sweep is not None]

    @property
    def complete(self) -> bool:
        """Return whether everything was measured without interruption."""
        alone = self.alone is not None or not self.stands_alone
        return (
            self.timed is not None
            and alone
            and (self.grid is not None or not self.config.recording)
            and self.unbroken
        )

    @property
    def unbroken(self) -> bool:
        """Return whether none of the runs so far was interrupted."""
        return all(part.complete for part in (*self.parts, self.alone) if part is not None)

    @property
    def timed_part(self) -> BenchPart | None:
        """Return the timed run for tables 1 and 2, over all prompts."""
        return self.timed.part if self.timed is not None else None

    @property
    def pair_times(self) -> tuple[float, float] | None:
        """Return the draft's and target's forward-pass times, fitted to both settings."""
        both = next((row.wall for row in self.times if row.setting == IN_BOTH), None)
        if (
            both is None
            or both.draft is None
            or both.target is None
            or min(both.draft, both.target) <= 0
        ):
            return None
        return both.draft, both.target
