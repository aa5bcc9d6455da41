"""Define what all papers share: runs, and tables that include published numbers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from paceline.bench.environment import Environment
from paceline.bench.report import MEASURES, measured, setting_parts
from paceline.bench.result import BenchResult, MethodFigures
from paceline.bench.timed_calls import Divergence
from paceline.report.tables import Cell, Column, Table
from papers.config import PaperConfig

PLAIN = "none"
SPEEDUP = (
    "speed-up: tokens/s relative to plain decoding in the same engine, on the hardware named above."
)
CPU_TIME = (
    "CPU time: speed-up, computed from processor time instead of elapsed time. Other jobs on the"
    " machine affect processor time less."
)
CONVENTION = (
    "S, the step compression, is the number of tokens per forward pass: (new tokens - 1) /"
    " (target forward passes - prefill forward passes). With plain decoding, S is exactly 1."
)
PICTURE = (
    "This table lists no values from the paper, because the paper shows them only in a figure."
)
_MEASURES = {
    **MEASURES,
    Column("S", ".2f"): "tokens_per_forward",
    Column("draft/ token", ".2f"): "draft_forwards",
    Column("N_target/N", ".3f"): "verification_rate",
    Column("N_disc/N", ".3f"): "discard_rate",
}
_COLUMNS = {column.heading: column for column in _MEASURES}
_RATIOS = {"speed-up": "tokens_per_second", "CPU time": "cpu_speedup"}  # relative to plain decoding


@dataclass(frozen=True, slots=True)
class BenchPart:
    """The summary of a benchmark run by `run_bench`.

    Attributes:
        label: Name of the run.
        setting: Phrases that describe the setup: models, dtype, requests and hardware.
        environment: The machine and the software versions.
        complete: Whether the run was completed without interruption.
        reference: Method whose answers all other methods must match.
        figures: Figures of every method.
        divergences: The first difference of each answer that differs from the reference.
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
        """Return the summary of a finished or interrupted run."""
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
        return next((figures for figures in self.figures if figures.method == name), None)

    def equality(self) -> str:
        """Return a sentence that says how many answers are equal, and which ones differ."""
        equal, compared = (
            sum(row.equal for row in self.figures),
            sum(row.compared for row in self.figures),
        )
        reference = "plain decoding" if self.reference == PLAIN else self.reference
        sentence = (
            f"{equal} of {compared} answers have exactly the same tokens as the answers from"
            f" {reference or 'the reference (none ran)'}"
        )
        if not self.divergences:
            return f"{sentence}."
        gap = max(row.top_gap for row in self.divergences)
        return (
            f"{sentence}; at the first difference of the others, the target's two best logits lie"
            f" at most {gap:.3g} apart."
        )


class PaperResult(Protocol):
    """The results for a paper; each paper defines a frozen dataclass of runs."""

    title: ClassVar[str]  # title of the paper, with authors and year

    @property
    def config(self) -> PaperConfig:
        """Return the configuration for the measurement."""

    @property
    def complete(self) -> bool:
        """Return whether everything was measured without interruption."""

    @property
    def parts(self) -> list[BenchPart]:
        """Return the benchmark runs that were measured."""


def setting(result: PaperResult) -> list[str]:
    """Return phrases about the setup; those that all runs share come first."""
    settings = [part.setting for part in result.parts]
    shared = [phrase for phrase in settings[0] if all(phrase in setting for setting in settings)]
    own = {
        part.label: " and ".join(phrase for phrase in part.setting if phrase not in shared)
        for part in result.parts
    }
    phrases = [
        *shared,
        *(text if text == label else f"{label} with {text}" for label, text in own.items() if text),
    ]
    return phrases if result.complete else [*phrases, "PARTIAL: interrupted"]


@dataclass(frozen=True, slots=True)
class TableLine:
    """A row of a paper's table.

    Attributes:
        label: Label of the row.
        method: Method that was measured for this row; None if there is none.
        paper: The numbers published in the paper, in the order of its columns.
    """

    label: str
    method: str | None
    paper: tuple[float, ...] = ()


def figures_of(part: BenchPart | None, method: str | None) -> MethodFigures | None:
    """Return the measured figures of a method; None if it did not run."""
    return part.method(method) if part is not None else None


def ratio(
    part: BenchPart | None, method: str | None, base: str = PLAIN, field: str = "tokens_per_second"
) -> float | None:
    """Return a method's speed relative to `base`; None unless both were timed.

    Args:
        part: Run that includes both methods.
        method: Name of the method.
        base: Name of the method to compare with.
        field: Field of `MethodFigures` to compare; "cpu_speedup" compares processor time.
    """
    rates = [
        figures and getattr(figures, field)
        for figures in (figures_of(part, method), figures_of(part, base))
    ]
    return rates[0] / rates[1] if rates[0] and rates[1] else None


def cells(
    part: BenchPart | None, method: str | None, headings: Sequence[str], base: str = PLAIN
) -> list[Cell]:
    """Return the figures of a method as table cells, one for each heading.

    Args:
        part: Run with the figures.
        method: Name of the method.
        headings: Headings as in a benchmark's table, or "S", "draft/ token", "N_target/N",
            "N_disc/N".
        base: Method to which the columns "speed-up" and "CPU time" are relative.
    """
    figures = figures_of(part, method)
    return [
        ratio(part, method, base, _RATIOS[heading])
        if heading in _RATIOS
        else measured(figures, _MEASURES[_COLUMNS[heading]])
        for heading in headings
    ]


def columns(headings: Iterable[str], before: str = "", after: str = "") -> list[Column]:
    """Return the columns for `cells`, adding text before and after the headings."""
    return [Column(f"{before}{heading}{after}", _COLUMNS[heading].form) for heading in headings]


@dataclass(frozen=True, slots=True)
class TableLayout:
    """The layout of a paper's table.

    Attributes:
        title: Title of the table.
        headings: Heading of the column with the labels, followed by headings as in `cells`.
        paper: Headings of the columns with published numbers.
        lines: Rows of the table.
        form: Format of the published numbers.
        base: Method to which the columns "speed-up" and "CPU time" are relative.
    """

    title: str
    headings: tuple[str, ...]
    paper: tuple[str, ...]
    lines: tuple[TableLine, ...]
    form: str = ".2f"
    base: str = PLAIN


def line_table(layout: TableLayout, part: BenchPart | None, notes: Iterable[str]) -> Table:
    """Build a table with the labels, the measured figures and the published numbers."""
    first, *measured_headings = layout.headings
    rows = []
    for line in layout.lines:
        missing = [None] * (len(layout.paper) - len(line.paper))
        measured_cells = cells(part, line.method, measured_headings, layout.base)
        rows.append((line.label, *measured_cells, *line.paper, *missing))
    headings = [first, *columns(measured_headings), *layout.paper]
    return Table.of(layout.title, headings, rows, notes, layout.form)
