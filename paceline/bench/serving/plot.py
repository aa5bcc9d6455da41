"""A load bench as a picture: latency against cost as in Figures 6 and 7 of the SSSD paper,
throughput, and random arrivals.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from paceline.bench.serving.report import setting_parts
from paceline.bench.serving.result import LoadFigures, ServingResult
from paceline.report.drawing import COLOURS, INK, MARKERS, THEIRS, label, line, page, save

_COLUMN, _ROW, _FRAME = 4.2, 3.4, 0.6  # inches
_TITLE = 26  # characters per inch


def write_png(result: ServingResult, path: str | Path) -> None:
    """Draw the run into a PNG file: a column per context.

    Raises:
        ConfigError: matplotlib is not installed, or the file cannot be written.
    """
    figures = result.figures()
    contexts = list(dict.fromkeys(one.load.context for one in figures))
    rows = [
        _draw_cost,
        _draw_throughput,
        *([_draw_arrivals] if any(one.load.kind == "poisson" for one in figures) else []),
    ]
    width = max(2, len(contexts)) * _COLUMN
    figure = page(width, _FRAME + _ROW * len(rows))
    axes = figure.subplots(len(rows), len(contexts), squeeze=False)
    for column, context in enumerate(contexts):
        for row, draw in enumerate(rows):
            for number, drafter in enumerate(result.config.drafters):
                mine = [
                    one for one in figures if (one.load.context, one.drafter) == (context, drafter)
                ]
                colour = THEIRS if number == 0 else COLOURS[(number - 1) % len(COLOURS)]
                draw(
                    axes[row][column],
                    context,
                    mine,
                    {"name": drafter, "color": colour, "marker": MARKERS[number % len(MARKERS)]},
                )
            axes[row][column].set_ylim(bottom=0)  # when all is drawn: it fixes the other end
            if row == 0:
                axes[row][column].legend(frameon=False, fontsize=8, labelcolor=INK)
    save(figure, path, setting_parts(result), int(width * _TITLE / 2))


def _draw_cost(axes: Any, context: str, figures: list[LoadFigures], style: dict[str, str]) -> None:
    closed = [one for one in figures if one.load.kind == "closed"]
    line(axes, [one.cost for one in closed], [one.latency for one in closed], **style)
    for one in closed:
        axes.annotate(
            f"{one.load.level:g}",
            (one.cost, one.latency),
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
        (one for one in figures if one.load.kind == "closed"), key=lambda one: one.load.level
    )
    line(axes, [one.load.level for one in closed], [one.throughput for one in closed], **style)
    axes.set_xscale("log", base=2)
    axes.set_xticks([one.load.level for one in closed], [f"{one.load.level:g}" for one in closed])
    label(axes, "throughput", "users", "tokens/s", "both")


def _draw_arrivals(
    axes: Any, context: str, figures: list[LoadFigures], style: dict[str, str]
) -> None:
    random = sorted(
        (one for one in figures if one.load.kind == "poisson"), key=lambda one: one.load.level
    )
    places = [one.load.level for one in random]
    line(axes, places, [one.end_p50 for one in random], **style)
    line(axes, places, [one.end_p99 for one in random], **style, style="--")
    label(
        axes,
        "random arrivals; dashed: p99",
        "rate, as a share of plain capacity",
        "seconds to the whole answer",
        "both",
    )
