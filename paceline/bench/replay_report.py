"""Replays as a table, as JSON and as a picture."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from paceline.bench.document import write_document
from paceline.bench.drawing import COLOURS, INK, MARKERS, headline, label, legend_below, page, save
from paceline.replay import ReplayResult

SCHEMA = 1
KIND = "paceline replay"
_FIGURES = ("tokens_per_step", "accepted_per_step", "drafted_per_step", "microseconds_per_step")
_WIDTH, _HEIGHT, _TITLE_COLUMNS = 5.0, 4.2, 110  # of a panel in inches; characters of a title line


@dataclass(frozen=True, slots=True)
class ReplayRow:
    """One replay and what it was of."""

    drafter: str
    traces: str
    result: ReplayResult


def print_replays(rows: Seq[ReplayRow], console: Console | None = None) -> None:
    """The table; default console: standard output."""
    table = Table(box=None, pad_edge=False)
    for heading in ("traces", "drafter", "nodes", "batch", "tokens/step", "accepted/step", "drafted/step", "us/step"):
        table.add_column(heading, justify="left" if heading in ("traces", "drafter") else "right", overflow="fold")
    for row in rows:
        found = row.result
        figures = (f"{getattr(found, name):.{1 if name.startswith('micro') else 3}f}" for name in _FIGURES)
        table.add_row(row.traces, row.drafter, str(found.max_nodes), str(found.batch_size), *figures)
    (console or Console(highlight=False)).print(table)


def write_replays(rows: Seq[ReplayRow], path: Path) -> None:
    """All counts and figures as JSON.

    Raises:
        ConfigError: the file cannot be written.
    """
    write_document(path, KIND, SCHEMA, {"rows": [_as_json(row) for row in rows]})


def draw_replays(rows: Seq[ReplayRow], path: Path) -> None:
    """Tokens per step against the tree size, a panel for each file of traces, a line for each drafter.

    Raises:
        ConfigError: matplotlib is not installed, or the file cannot be written.
    """
    names = list(dict.fromkeys(row.traces for row in rows))
    specs = list(dict.fromkeys(row.drafter for row in rows))
    batch = min(row.result.batch_size for row in rows)
    figure = page(_WIDTH * len(names), _HEIGHT)
    panels = figure.subplots(1, len(names), squeeze=False)[0]
    for axes, name in zip(panels, names, strict=True):
        for place, spec in enumerate(specs):
            found = [row.result for row in rows if (row.traces, row.drafter, row.result.batch_size) == (name, spec, batch)]
            axes.plot(
                [one.max_nodes for one in found], [one.tokens_per_step for one in found],
                color=COLOURS[place % len(COLOURS)], marker=MARKERS[place % len(MARKERS)], label=_short(spec), linewidth=1.5,
            )  # fmt: skip
        axes.axhline(1.0, color=INK, linewidth=0.8, linestyle=":")
        axes.set_ylim(bottom=0)
        label(axes, name, "nodes of the tree", "tokens per step", "both")
        legend_below(axes, 2)
    headline(figure, ["recorded answers replayed", "plain decoding is 1"], _TITLE_COLUMNS, 9)
    save(figure, path)


def _as_json(row: ReplayRow) -> dict[str, Any]:
    figures = {name: getattr(row.result, name) for name in _FIGURES}
    return {"drafter": row.drafter, "traces": row.traces, **dataclasses.asdict(row.result), **figures}


def _short(spec: str) -> str:
    """A spec without the folders of its paths."""
    return ",".join(part if "/" not in part else part[: part.find("=") + 1] + part.rsplit("/", 1)[-1] for part in spec.split(","))
