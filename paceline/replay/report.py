"""Print the results of replays as a table, write them as JSON, and plot them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from paceline.replay.replay_settings import PANEL_HEIGHT, PANEL_WIDTH, TITLE_COLUMNS
from paceline.replay.run import ReplayResult
from paceline.report.documents import DocumentKind, write_document
from paceline.report.drawing import COLOURS, MARKERS, label, line, page, reference_line, save
from paceline.report.tables import Column, Table

_FIGURES = {  # column -> property of `ReplayResult`
    Column("tokens/step", ".3f"): "tokens_per_step",
    Column("accepted/step", ".3f"): "accepted_per_step",
    Column("drafted/step", ".3f"): "drafted_per_step",
    Column("us/step", ".1f"): "microseconds_per_step",
}


@dataclass(frozen=True, slots=True)
class ReplayRow:
    """The result of one replay.

    Attributes:
        drafter: Drafter spec.
        traces: Name of the file with the replayed answers.
        result: Counts from the replay.
    """

    drafter: str
    traces: str
    result: ReplayResult


KIND = DocumentKind("paceline replay", 1, dict)


def print_replays(rows: Sequence[ReplayRow], console: Console | None = None) -> None:
    """Print the results of replays as a table.

    Args:
        rows: Results to print, one row each.
        console: Console to print to. Default: standard output.
    """
    columns = [
        Column("traces"),
        Column("drafter", left=True),
        Column("nodes"),
        Column("batch"),
        *_FIGURES,
    ]
    cells = [
        (
            row.traces,
            row.drafter,
            row.result.max_nodes,
            row.result.batch_size,
            *_figures(row.result).values(),
        )
        for row in rows
    ]
    Table.of("", columns, cells).show(console or Console(highlight=False))


def write_replays(rows: Sequence[ReplayRow], path: Path) -> None:
    """Write the counts of replays as JSON, with the figures computed from them.

    Args:
        rows: Results to write.
        path: File to write.
    Raises:
        ConfigError: The file cannot be written.
    """
    entries = [
        {
            "drafter": row.drafter,
            "traces": row.traces,
            **dataclasses.asdict(row.result),
            **_figures(row.result),
        }
        for row in rows
    ]
    write_document(path, KIND, {"rows": entries})


def draw_replays(rows: Sequence[ReplayRow], path: Path) -> None:
    """Plot tokens per step against the maximum number of draft-tree nodes.

    The plot has a panel for each file of answers, with a line for each drafter. It shows only the
    replays with the smallest batch size.

    Args:
        rows: Results to plot.
        path: PNG file to write.
    Raises:
        ConfigError: matplotlib is not installed, or the file cannot be written.
    """
    names = list(dict.fromkeys(row.traces for row in rows))
    specs = list(dict.fromkeys(row.drafter for row in rows))
    batch = min(row.result.batch_size for row in rows)
    figure = page(PANEL_WIDTH * len(names), PANEL_HEIGHT)
    panels = figure.subplots(1, len(names), squeeze=False)[0]
    for axes, name in zip(panels, names, strict=True):
        for index, spec in enumerate(specs):
            key = name, spec, batch
            results = [
                row.result
                for row in rows
                if (row.traces, row.drafter, row.result.batch_size) == key
            ]
            rates = [result.tokens_per_step for result in results]
            colour, marker = COLOURS[index % len(COLOURS)], MARKERS[index % len(MARKERS)]
            line(
                axes, [result.max_nodes for result in results], rates, _short(spec), colour, marker
            )
        reference_line(axes)
        axes.set_ylim(bottom=0)
        label(axes, name, "maximum nodes per tree", "tokens per step", "both", 2)
    save(figure, path, ["recorded answers replayed", "plain decoding is 1"], TITLE_COLUMNS)


def _figures(result: ReplayResult) -> dict[str, float]:
    return {name: getattr(result, name) for name in _FIGURES.values()}


def _short(spec: str) -> str:
    """Shorten the paths in a drafter spec to file names."""
    options = (
        part if "/" not in part else part[: part.find("=") + 1] + part.rsplit("/", 1)[-1]
        for part in spec.split(",")
    )
    return ",".join(options)
