"""What papers measured again have in common: lines with a method's figures beside the paper's, and a share of the time."""

from __future__ import annotations

import time
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any

from paceline.bench.paper import PaperConfig, Part, Section
from paceline.bench.result import Figures

PLAIN = "none"
SPEEDUP = "speed-up: tokens/s over those of plain decoding in the same engine, on the hardware named above."
CPU_TIME = "CPU time: the same ratio in processor time, which other jobs on the machine disturb less."
_MOMENT = 1e-3  # seconds: a limit of 0 would mean none
_FIELDS = {  # column -> field of `Figures`, number format
    "tokens/s": ("tokens_per_second", ".1f"),
    "S": ("tokens_per_forward", ".2f"),
    "draft/ token": ("draft_forwards", ".2f"),
    "fed/ step": ("fed_per_step", ".1f"),
    "N_target/N": ("verification_rate", ".3f"),
    "N_disc/N": ("discard_rate", ".3f"),
}


@dataclass(frozen=True, slots=True)
class Line:
    """One row of a table of a paper.

    Attributes:
        method: the drafter that stands for it here; None if none does.
        paper: the paper's own numbers, in the order of its columns.
    """

    label: str
    method: str | None
    paper: tuple[float, ...] = ()


def figures_of(part: Part | None, method: str | None) -> Figures | None:
    """What was measured of a method; None if it did not run."""
    return part.method(method) if part is not None else None


def ratio(part: Part | None, method: str | None, base: str = PLAIN, processor: bool = False) -> float | None:
    """Tokens/s of a method over those of `base` in the same run; None unless both were timed.

    Args:
        processor: per second of processor time, which other jobs on the machine disturb less.
    """
    field = "cpu_speedup" if processor else "tokens_per_second"
    rates = [one and getattr(one, field) for one in (figures_of(part, method), figures_of(part, base))]
    return rates[0] / rates[1] if rates[0] and rates[1] else None


def cells(part: Part | None, method: str | None, columns: Seq[str], base: str = PLAIN) -> tuple[str, ...]:
    """A method's figures as texts, "-" where there are none.

    Args:
        columns: headings out of "tokens/s", "speed-up", "CPU time", "S", "draft/ token", "fed/ step", "N_target/N", "N_disc/N"
            and "equal".
        base: the method that speed-ups are relative to.
    """
    return tuple(_cell(part, method, column, base) for column in columns)


def table(
    title: str, headings: tuple[str, ...], paper: tuple[str, ...], part: Part | None, lines: Seq[Line], notes: Seq[str],
    form: str = ".2f", base: str = PLAIN,
) -> Section:  # fmt: skip
    """A table of the paper: per line its label, the figures measured, the paper's own numbers in `form`.

    Args:
        headings: of the label, then columns as in `cells`. paper: of the paper's numbers. base: as in `cells`.
    """
    rows = []
    for line in lines:
        theirs = [*(format(value, form) for value in line.paper), *["-"] * (len(paper) - len(line.paper))]
        rows.append((line.label, *cells(part, line.method, headings[1:], base), *theirs))
    return Section(title, (*headings, *paper), tuple(rows), tuple(notes))


def _cell(part: Part | None, method: str | None, column: str, base: str) -> str:
    figures = figures_of(part, method)
    if column == "equal":
        return f"{figures.equal}/{figures.compared}" if figures and figures.compared else "-"
    if column in ("speed-up", "CPU time"):
        return text_of(ratio(part, method, base, processor=column == "CPU time"))
    name, form = _FIELDS[column]
    return text_of(None if figures is None else getattr(figures, name), form)


def text_of(value: float | None, form: str = ".2f") -> str:
    """A number for a table."""
    return "-" if value is None else format(value, form)


def summary_row(part: Part | None, line: Line, columns: Seq[str], base: str = PLAIN) -> dict[str, Any]:
    """A line as plain values; `columns` names the paper's numbers, `base` is as in `cells`."""
    figures = figures_of(part, line.method)
    return {
        "label": line.label,
        "method": line.method,
        "tokens_per_second": figures and figures.tokens_per_second,
        "speedup": ratio(part, line.method, base),
        "cpu_speedup": ratio(part, line.method, base, processor=True),
        "compression": figures and figures.tokens_per_forward,
        "draft_forwards": figures and figures.draft_forwards,
        "paper": dict(zip(columns, line.paper, strict=False)),
    }


def seconds_left(config: PaperConfig, start: float, share: float = 1.0) -> float:
    """Seconds of this share of the paper's time that are left, having begun at `start` of `time.perf_counter`; 0 = no limit."""
    return max(_MOMENT, config.max_seconds * share - (time.perf_counter() - start)) if config.max_seconds else 0.0
