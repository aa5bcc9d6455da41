"""Plot a load benchmark in two or three rows of plots.

The first row shows latency against cost, as in figures 6 and 7 of the SSSD paper. The second row
shows throughput. The third row shows the times of answers to requests that arrive at random.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from paceline.bench.serving.report import setting_parts
from paceline.bench.serving.report_settings import COLUMN, FRAME, ROW, TITLE_DENSITY
from paceline.bench.serving.result import LoadFigures, ServingResult
from paceline.report.drawing import COLOURS, INK, MARKERS, THEIRS, label, line, page, save


def write_png(result: ServingResult, path: str | Path) -> None:
    """Plot the run as a PNG file, with one column of plots per context length.

    Raises:
        ConfigError: matplotlib is not installed, or the file cannot be written.
    """
    figures = result.figures()
    contexts = list(dict.fromkeys(row.load.context for row in figures))
    rows = [
        _draw_cost,
        _draw_throughput,
        *([_draw_arrivals] if any(row.load.kind == "poisson" for row in figures) else []),
    ]
    width = max(2, len(contexts)) * COLUMN
    figure = page(width, FRAME + ROW * len(rows))
    axes = figure.subplots(len(rows), len(contexts), squeeze=False)
    for column, context in enumerate(contexts):
        for row, draw in enumerate(rows):
            for number, drafter in enumerate(result.config.drafters):
                shown = [
                    row for row in figures if (row.load.context, row.drafter) == (context, drafter)
                ]
                colour = THEIRS if number == 0 else COLOURS[(number - 1) % len(COLOURS)]
                style = {"name": drafter, "color": colour, "marker": MARKERS[number % len(MARKERS)]}
                draw(axes[row][column], context, shown, style)
            axes[row][column].set_ylim(bottom=0)  # after drawing, as it fixes the upper limit
            if row == 0:
                axes[row][column].legend(frameon=False, fontsize=8, labelcolor=INK)
    save(figure, path, setting_parts(result), int(width * TITLE_DENSITY / 2))


def _draw_cost(axes: Any, context: str, figures: list[LoadFigures], style: dict[str, str]) -> None:
    closed = [row for row in figures if row.load.kind == "closed"]
    line(axes, [row.cost for row in closed], [row.latency for row in closed], **style)
    for row in closed:
        axes.annotate(
            f"{row.load.level:g}",
            (row.cost, row.latency),
            (4, 4),
            textcoords="offset points",
            fontsize=7,
            color=INK,
        )
    label(
        axes,
        f"{context} prompts; points: users",
        "cost: ms of the machine per token",
        "latency: ms per token",
        "both",
    )


def _draw_throughput(
    axes: Any, context: str, figures: list[LoadFigures], style: dict[str, str]
) -> None:
    closed = sorted(
        (row for row in figures if row.load.kind == "closed"), key=lambda row: row.load.level
    )
    line(axes, [row.load.level for row in closed], [row.throughput for row in closed], **style)
    axes.set_xscale("log", base=2)
    axes.set_xticks([row.load.level for row in closed], [f"{row.load.level:g}" for row in closed])
    label(axes, "throughput", "users", "tokens/s", "both")


def _draw_arrivals(
    axes: Any, context: str, figures: list[LoadFigures], style: dict[str, str]
) -> None:
    random = sorted(
        (row for row in figures if row.load.kind == "poisson"), key=lambda row: row.load.level
    )
    levels = [row.load.level for row in random]
    line(axes, levels, [row.end_p50 for row in random], **style)
    line(axes, levels, [row.end_p99 for row in random], **style, style="--")
    label(
        axes,
        "random arrivals; dashed: p99",
        "rate, as a share of plain capacity",
        "seconds to the whole answer",
        "both",
    )
