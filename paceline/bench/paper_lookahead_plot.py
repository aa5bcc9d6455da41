"""The picture of the lookahead paper measured again."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.bench.drawing import COLOURS, INK, MARKERS, OURS, THEIRS, bars, headline, label, page, save
from paceline.bench.paper_lines import Line, figures_of, ratio
from paceline.bench.paper_lookahead import NGRAMS, PAPER_LAW, TABLE_3, TABLE_6, WINDOWS
from paceline.bench.paper_report import setting_line
from paceline.bench.scaling_law import Point, ScalingLaw, fit

if TYPE_CHECKING:
    from paceline.bench.paper_lookahead import LookaheadResult

_SIZES = (11, 8.5, 7.5, 5.5)  # so that points on top of one another can all be seen
_PAGE = (11.0, 9.6)  # inches
_TITLE_COLUMNS = 150
_CURVE = 80  # pieces of a curve


def draw_lookahead(result: LookaheadResult, path: Path) -> None:
    """Figure 4 above, tables 3 and 6 as bars below.

    Raises:
        ConfigError: matplotlib is not installed, or the file cannot be written.
    """
    figure = page(*_PAGE)
    halves: Any = figure.subfigures(2, 1, height_ratios=(1.0, 1.1))
    above, below = halves
    _draw_figure_4(result, *above.subplots(1, 3, sharey=True))
    table_3, table_6 = below.subplots(1, 2)
    _draw_table(table_3, TABLE_3, [_compression(result, line) for line in TABLE_3], 1, "LLaMA-2-7B, MT-Bench, A100")
    label(table_3, "Table 3: (N, W, G)", "S, tokens per forward", "", "x")
    _draw_table(table_6, TABLE_6, [ratio(result.tables, line.method) for line in TABLE_6], 0, "Vicuna-7B, MT-Bench, A100")
    label(table_6, "Table 6: other methods", "speed-up over plain decoding", "", "x")
    headline(figure, setting_line(result).split("; "), _TITLE_COLUMNS, 9)
    save(figure, path)


def _draw_figure_4(result: LookaheadResult, published: Any, paceline: Any, paper: Any) -> None:
    tops = [PAPER_LAW.compression(NGRAMS[-1], WINDOWS[-1])]
    for axes, points, title in (
        (published, result.points(published=True), "Figure 4a, the public code's steps"),
        (paceline, result.points(published=False), "Figure 4a, this implementation"),
    ):
        law = fit(points)
        tops += [point.compression for point in points]
        tops += [law.compression(NGRAMS[-1], WINDOWS[-1])] if law is not None else []
        _draw_points(axes, points)
        _draw_law(axes, law)
        fitted = "no fit" if law is None else f"fit: {_parameters(law)}, RMS {law.residual(points):.3f}"
        label(axes, f"{title}\n{fitted}", "W = G", "S, tokens per forward" if axes is published else "", "both")
    _draw_law(paper, PAPER_LAW)
    label(paper, f"Figure 4b, LLaMA-2-7B on MT-Bench\nthe paper's fit: {_parameters(PAPER_LAW)}", "W = G", "", "both")
    for axes in (published, paceline, paper):
        axes.set_xscale("log", base=2)
        axes.set_xticks(WINDOWS, [str(window) for window in WINDOWS])
        axes.minorticks_off()
        axes.set_ylim(1 - (max(tops) - 1) * 0.03, 1 + (max(tops) - 1) * 1.1)
    paper.legend(frameon=False, fontsize=9, loc="upper left", labelcolor=INK)


def _parameters(law: ScalingLaw) -> str:
    return rf"$\alpha$ = {law.alpha:.3f}, f = {law.f:.3f}"


def _draw_points(axes: Any, points: list[Point]) -> None:
    for place, ngram in enumerate(NGRAMS):
        mine = [point for point in points if point.ngram == ngram]
        axes.plot(
            [point.window for point in mine], [point.compression for point in mine], linestyle="", marker=MARKERS[place],
            markersize=_SIZES[place], markeredgecolor="white", markeredgewidth=0.6, color=COLOURS[place], zorder=3,
        )  # fmt: skip


def _draw_law(axes: Any, law: ScalingLaw | None) -> None:
    last = math.log2(WINDOWS[-1])
    widths = [2 ** (last * step / _CURVE) for step in range(_CURVE + 1)]
    for place, ngram in enumerate(NGRAMS):
        heights = [] if law is None else [law.compression(ngram, width) for width in widths]
        axes.plot(widths[: len(heights)], heights, color=COLOURS[place], linewidth=1.4)
        axes.plot([], [], color=COLOURS[place], linewidth=1.4, marker=MARKERS[place], markersize=6, label=f"N = {ngram}")


def _draw_table(axes: Any, lines: tuple[Line, ...], mine: list[float | None], column: int, setting: str) -> None:
    theirs = [line.paper[column] if line.paper else None for line in lines]
    bars(axes, [line.label for line in lines], [("here", OURS, mine), (f"the paper ({setting})", THEIRS, theirs)], 1.0)


def _compression(result: LookaheadResult, line: Line) -> float | None:
    figures = figures_of(result.tables, line.method)
    return figures.tokens_per_forward if figures else None
