"""Plot the results for the lookahead paper."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from paceline.report.drawing import COLOURS, INK, MARKERS, compared, label, page, save
from papers.lookahead.options import NGRAMS, WINDOWS
from papers.lookahead.paper_settings import (
    CURVE_SEGMENTS,
    PAGE,
    PAPER_LAW,
    POINT_SIZES,
    TITLE_COLUMNS,
)
from papers.lookahead.result import LookaheadResult
from papers.lookahead.scaling_law import CompressionPoint, ScalingLaw, fit
from papers.lookahead.tables import points, table_3, table_6
from papers.part import setting


def draw(result: LookaheadResult, path: Path) -> None:
    """Draw figure 4 and, below it, tables 3 and 6 as bar charts.

    Raises:
        ConfigError: matplotlib is not installed, or the file cannot be written.
    """
    figure = page(*PAGE)
    halves: Any = figure.subfigures(2, 1, height_ratios=(1.0, 1.1))
    above, below = halves
    _draw_figure_4(result, *above.subplots(1, 3, sharey=True))
    left, right = below.subplots(1, 2)
    compared(left, table_3(result), "S", "paper's S", "LLaMA-2-7B, MT-Bench, A100")
    label(left, "Table 3: (N, W, G)", "S, tokens per forward", "", "x")
    compared(right, table_6(result), "speed-up", "paper's MT-Bench", "Vicuna-7B, MT-Bench, A100")
    label(right, "Table 6: other methods", "speed-up over plain decoding", "", "x")
    save(figure, path, setting(result), TITLE_COLUMNS)


def _draw_figure_4(result: LookaheadResult, published: Any, paceline: Any, paper: Any) -> None:
    tops = [PAPER_LAW.compression(NGRAMS[-1], WINDOWS[-1])]
    for axes, measured, title in (
        (published, points(result, published=True), "Figure 4a, the public code's steps"),
        (paceline, points(result, published=False), "Figure 4a, this implementation"),
    ):
        law = fit(measured)
        tops += [point.compression for point in measured]
        tops += [law.compression(NGRAMS[-1], WINDOWS[-1])] if law is not None else []
        _draw_points(axes, measured)
        _draw_law(axes, law)
        fitted = (
            "no fit"
            if law is None
            else f"fit: {_parameters(law)}, RMS {law.residual(measured):.3f}"
        )
        label(
            axes,
            f"{title}\n{fitted}",
            "W = G",
            "S, tokens per forward" if axes is published else "",
            "both",
        )
    _draw_law(paper, PAPER_LAW)
    label(
        paper,
        f"Figure 4b, LLaMA-2-7B on MT-Bench\nthe paper's fit: {_parameters(PAPER_LAW)}",
        "W = G",
        "",
        "both",
    )
    for axes in (published, paceline, paper):
        axes.set_xscale("log", base=2)
        axes.set_xticks(WINDOWS, [str(window) for window in WINDOWS])
        axes.minorticks_off()
        axes.set_ylim(1 - (max(tops) - 1) * 0.03, 1 + (max(tops) - 1) * 1.1)
    paper.legend(frameon=False, fontsize=9, loc="upper left", labelcolor=INK)


def _parameters(law: ScalingLaw) -> str:
    return rf"$\alpha$ = {law.alpha:.3f}, f = {law.f:.3f}"


def _draw_points(axes: Any, measured: list[CompressionPoint]) -> None:
    for ngram, marker, size, colour in zip(NGRAMS, MARKERS, POINT_SIZES, COLOURS, strict=False):
        shown = [(point.window, point.compression) for point in measured if point.ngram == ngram]
        style = {"markersize": size, "markeredgecolor": "white", "markeredgewidth": 0.6}
        axes.plot(
            [x for x, _ in shown],
            [y for _, y in shown],
            linestyle="",
            marker=marker,
            color=colour,
            zorder=3,
            **style,
        )


def _draw_law(axes: Any, law: ScalingLaw | None) -> None:
    last = math.log2(WINDOWS[-1])
    widths = (
        [2 ** (last * step / CURVE_SEGMENTS) for step in range(CURVE_SEGMENTS + 1)]
        if law is not None
        else []
    )
    for ngram, marker, colour in zip(NGRAMS, MARKERS, COLOURS, strict=False):
        axes.plot(
            widths,
            [law.compression(ngram, width) for width in widths if law],
            color=colour,
            linewidth=1.4,
        )
        axes.plot(
            [], [], color=colour, linewidth=1.4, marker=marker, markersize=6, label=f"N = {ngram}"
        )
