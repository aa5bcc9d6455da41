"""What papers measured again have in common: runs, tables with the paper's own numbers beside
them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from paceline.bench.environment import Environment
from paceline.bench.papers.config import PaperConfig
from paceline.bench.report import MEASURES, measured, setting_parts
from paceline.bench.result import BenchResult, Divergence, MethodFigures
from paceline.report.tables import Cell, Column, Table

PLAIN = "none"
SPEEDUP = (
    "speed-up: tokens/s over those of plain decoding in the same engine, on the hardware named"
    " above."
)
CPU_TIME = (
    "CPU time: the same ratio in processor time, which other jobs on the machine disturb less."
)
CONVENTION = (
    "S, the step compression, is tokens per forward: (new tokens - 1) / (target forwards - prefill"
    " forwards), so plain decoding"
    " is exactly 1."
)
PICTURE = "The paper shows its values as a picture only: no numbers stand beside these."
_MEASURES = {
    **MEASURES,
    Column("S", ".2f"): "tokens_per_forward",
    Column("draft/ token", ".2f"): "draft_forwards",
    Column("N_target/N", ".3f"): "verification_rate",
    Column("N_disc/N", ".3f"): "discard_rate",
}
_COLUMNS = {column.heading: column for column in _MEASURES}
_RATIOS = {
    "speed-up": "tokens_per_second",
    "CPU time": "cpu_speedup",
}  # here relative to plain decoding


@dataclass(frozen=True, slots=True)
class BenchPart:
    """What is kept of one `run_bench`: what ran where, every method's figures, and the answers
    that were not equal.
    """

    label: str
    setting: tuple[str, ...]
    environment: Environment
    complete: bool
    reference: str | None
    figures: tuple[MethodFigures, ...]
    divergences: tuple[Divergence, ...]

    @staticmethod
    def of(label: str, result: BenchResult) -> BenchPart:
        """Make it from a finished, or interrupted, run."""
        cut = (
            [f"{result.cut_prompts} prompts too long for the context, and cut"]
            if result.cut_prompts
            else []
        )
        return BenchPart(
            label,
            (*setting_parts(result), *cut),
            result.environment,
            result.complete,
            result.reference,
            tuple(result.figures()),
            result.divergences,
        )

    def method(self, name: str | None) -> MethodFigures | None:
        """Return the figures of a method; None if it did not run."""
        return next((one for one in self.figures if one.method == name), None)

    def equality(self) -> str:
        """Return how many answers were compared, and what is known of those that differ."""
        equal, compared = (
            sum(one.equal for one in self.figures),
            sum(one.compared for one in self.figures),
        )
        said = (
            f"{equal} of {compared} answers have exactly the tokens of"
            f" {self.reference or 'the reference (none ran)'}"
        )
        if not self.divergences:
            return f"{said}."
        gap = max(one.top_gap for one in self.divergences)
        return (
            f"{said}; where the others first differ, the target's two best logits lie at most"
            f" {gap:.3g} apart."
        )


class PaperResult(Protocol):
    """A paper measured again: a frozen dataclass whose fields are what was measured."""

    title: ClassVar[str]  # of the paper, with authors and year

    @property
    def config(self) -> PaperConfig:
        """What was asked for."""

    @property
    def complete(self) -> bool:
        """False if it was interrupted; then something is missing."""

    @property
    def parts(self) -> list[BenchPart]:
        """The runs there were."""


def setting(result: PaperResult) -> list[str]:
    """Return what ran where in short pieces, once for all parts, and what differs between them."""
    settings = [part.setting for part in result.parts]
    shared = [piece for piece in settings[0] if all(piece in setting for setting in settings)]
    own = {
        part.label: ", ".join(piece for piece in part.setting if piece not in shared)
        for part in result.parts
    }
    pieces = [*shared, *(f"{label}: {text}" for label, text in own.items() if text)]
    return pieces if result.complete else [*pieces, "PARTIAL: interrupted"]


@dataclass(frozen=True, slots=True)
class TableLine:
    """One row of a table of a paper.

    Attributes:
        method: the drafter that stands for it here; None if none does.
        paper: the paper's own numbers, in the order of its columns.
    """

    label: str
    method: str | None
    paper: tuple[float, ...] = ()


def figures_of(part: BenchPart | None, method: str | None) -> MethodFigures | None:
    """Return what was measured of a method; None if it did not run."""
    return part.method(method) if part is not None else None


def ratio(
    part: BenchPart | None, method: str | None, base: str = PLAIN, field: str = "tokens_per_second"
) -> float | None:
    """Return tokens/s of a method over those of `base` in the same run; None unless both were
    timed.

    Args:
        field: of `MethodFigures`; "cpu_speedup" for tokens per second of processor time, which
            other jobs disturb less.
    """
    rates = [
        one and getattr(one, field) for one in (figures_of(part, method), figures_of(part, base))
    ]
    return rates[0] / rates[1] if rates[0] and rates[1] else None


def cells(
    part: BenchPart | None, method: str | None, headings: Sequence[str], base: str = PLAIN
) -> list[Cell]:
    """Return a method's figures under `headings`: those of the bench's table, "S", "draft/ token",
    "N_target/N", "N_disc/N".

    Args:
        base: the method that "speed-up" and "CPU time" are relative to.
    """
    figures = figures_of(part, method)
    return [
        ratio(part, method, base, _RATIOS[one])
        if one in _RATIOS
        else measured(figures, _MEASURES[_COLUMNS[one]])
        for one in headings
    ]


def columns(headings: Iterable[str], before: str = "", after: str = "") -> list[Column]:
    """Return the columns of `cells`, more text around their headings where methods stand side by
    side.
    """
    return [Column(f"{before}{one}{after}", _COLUMNS[one].form) for one in headings]


def line_table(
    title: str,
    headings: Sequence[str],
    paper: Sequence[str],
    part: BenchPart | None,
    lines: Sequence[TableLine],
    notes: Iterable[str],
    form: str = ".2f",
    base: str = PLAIN,
) -> Table:
    """Return a table of the paper: per line its label, the figures measured, the paper's own
    numbers in `form`.

    Args:
        headings: of the labels, then as in `cells`. paper: of the paper's numbers. base: as in
            `cells`.
    """
    first, *mine = headings
    rows = [
        (
            one.label,
            *cells(part, one.method, mine, base),
            *one.paper,
            *[None] * (len(paper) - len(one.paper)),
        )
        for one in lines
    ]
    return Table.of(title, [first, *columns(mine), *paper], rows, notes, form)
