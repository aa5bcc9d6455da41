"""Pictures of papers measured again."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.bench.paper_lookahead import NGRAMS, PAPER_LAW, TABLE_3, TABLE_6, WINDOWS, Line
from paceline.bench.paper_report import setting_line
from paceline.bench.scaling_law import Point, ScalingLaw, fit
from paceline.errors import ConfigError

if TYPE_CHECKING:
    from paceline.bench.paper_lookahead import LookaheadResult

# Okabe and Ito's palette: told apart under every common colour blindness.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7")
_MARKERS = ("o", "s", "^", "D")
_SIZES = (11, 8.5, 7.5, 5.5)  # so that points on top of one another can all be seen
_OURS, _THEIRS, _INK = "#0072B2", "#B0B0B0", "#222222"
_PAGE = (11.0, 9.6)  # inches
_TITLE_COLUMNS = 150
_BAR = 0.38
_CURVE = 80  # pieces of a curve


def draw_lookahead(result: LookaheadResult, path: Path) -> None:
    """Figure 4 above, tables 3 and 6 as bars below.

    Raises:
        ConfigError: matplotlib is not installed, or the file cannot be written.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError("no picture without matplotlib; install it with: pip install 'paceline[bench]'.") from error
    figure = Figure(figsize=_PAGE, dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    halves: Any = figure.subfigures(2, 1, height_ratios=(1.0, 1.1))
    above, below = halves
    _draw_figure_4(result, *above.subplots(1, 3, sharey=True))
    table_3, table_6 = below.subplots(1, 2)
    _draw_bars(table_3, TABLE_3, lambda line: result.row(line)[1], 1, "LLaMA-2-7B, MT-Bench, A100")
    _label(table_3, "Table 3: (N, W, G)", "S, tokens per forward", "", "x")
    _draw_bars(table_6, TABLE_6, lambda line: result.row(line)[0], 0, "Vicuna-7B, MT-Bench, A100")
    _label(table_6, "Table 6: other methods", "speed-up over plain decoding", "", "x")
    pieces = [piece.replace(" ", "\N{NO-BREAK SPACE}") for piece in setting_line(result).split("; ")]  # lines end between them
    title = "\n".join(textwrap.wrap("; ".join(pieces), _TITLE_COLUMNS, break_long_words=False))
    figure.suptitle(title, fontsize=9, color=_INK, x=0.01, ha="left")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, format="png")
    except OSError as error:
        raise ConfigError(f"cannot write {str(path)!r}: {error}") from error


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
        _label(axes, f"{title}\n{fitted}", "W = G", "S, tokens per forward" if axes is published else "", "both")
    _draw_law(paper, PAPER_LAW)
    _label(paper, f"Figure 4b, LLaMA-2-7B on MT-Bench\nthe paper's fit: {_parameters(PAPER_LAW)}", "W = G", "", "both")
    for axes in (published, paceline, paper):
        axes.set_xscale("log", base=2)
        axes.set_xticks(WINDOWS, [str(window) for window in WINDOWS])
        axes.minorticks_off()
        axes.set_ylim(1 - (max(tops) - 1) * 0.03, 1 + (max(tops) - 1) * 1.1)
    paper.legend(frameon=False, fontsize=9, loc="upper left", labelcolor=_INK)


def _parameters(law: ScalingLaw) -> str:
    return rf"$\alpha$ = {law.alpha:.3f}, f = {law.f:.3f}"


def _draw_points(axes: Any, points: list[Point]) -> None:
    for place, ngram in enumerate(NGRAMS):
        mine = [point for point in points if point.ngram == ngram]
        axes.plot(
            [point.window for point in mine], [point.compression for point in mine], linestyle="", marker=_MARKERS[place],
            markersize=_SIZES[place], markeredgecolor="white", markeredgewidth=0.6, color=_COLOURS[place], zorder=3,
        )  # fmt: skip


def _draw_law(axes: Any, law: ScalingLaw | None) -> None:
    last = math.log2(WINDOWS[-1])
    widths = [2 ** (last * step / _CURVE) for step in range(_CURVE + 1)]
    for place, ngram in enumerate(NGRAMS):
        heights = [] if law is None else [law.compression(ngram, width) for width in widths]
        axes.plot(widths[: len(heights)], heights, color=_COLOURS[place], linewidth=1.4)
        axes.plot([], [], color=_COLOURS[place], linewidth=1.4, marker=_MARKERS[place], markersize=6, label=f"N = {ngram}")


def _draw_bars(axes: Any, lines: tuple[Line, ...], value: Callable[[Line], float | None], column: int, setting: str) -> None:
    mine = [value(line) for line in lines]
    theirs = [line.paper[column] if line.paper else None for line in lines]
    for values, shift, colour, label in ((mine, -_BAR / 2, _OURS, "here"), (theirs, _BAR / 2, _THEIRS, f"the paper ({setting})")):
        places = [place + shift for place in range(len(lines))]
        axes.barh(places, [one or 0.0 for one in values], color=colour, height=_BAR, label=label)
        for place, one in zip(places, values, strict=True):
            text = "-" if one is None else f"{one:.2f}"
            axes.annotate(text, (one or 0.0, place), (3, 0), textcoords="offset points", va="center", fontsize=8, color=_INK)
    axes.set_yticks(range(len(lines)), [line.label for line in lines])
    axes.set_ylim(len(lines) - 0.5, -0.5)
    axes.axvline(1.0, color=_INK, linewidth=0.8, linestyle=":", zorder=0.5)
    axes.set_xlim(0, 1.12 * max([1.0, *(one for one in (*mine, *theirs) if one)]))
    axes.legend(frameon=False, fontsize=8, loc="upper center", bbox_to_anchor=(0.4, -0.1), ncols=2, labelcolor=_INK)


def _label(axes: Any, title: str, below: str, beside: str, grid: str) -> None:
    axes.set_title(title, fontsize=10, color=_INK, loc="left")
    axes.set_xlabel(below, fontsize=9, color=_INK)
    axes.set_ylabel(beside, fontsize=9, color=_INK)
    axes.tick_params(labelsize=9, colors=_INK, length=0)
    axes.grid(axis=grid, color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
