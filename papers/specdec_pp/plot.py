"""Plot the results for the SpecDec++ paper."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from paceline.drafters.specdec_pp.card import latency
from paceline.report.drawing import (
    COLOURS,
    INK,
    OURS,
    THEIRS,
    bars,
    compared,
    label,
    page,
    reference_line,
    save,
)
from papers.part import setting
from papers.specdec_pp.costs import cheapest, pareto_front
from papers.specdec_pp.paper_settings import (
    TABLE_1,
)
from papers.specdec_pp.picks import ALL, PAPER_RATIO, measured_picks
from papers.specdec_pp.plot_settings import (
    BELOW,
    COST_RATIOS,
    DISCARD_TICKS,
    FIGURE_4_ROW,
    FRAME,
    PANELS_PER_ROW,
    RATIO_TICKS,
    SHOWN_SETS,
    TABLE_1_ROW,
    TITLE_COLUMNS,
    WIDTH,
)
from papers.specdec_pp.result import RulePoint, SpecDecResult
from papers.specdec_pp.rules import (
    FIXED,
    FROM_ONE,
    HEAD,
    HEURISTIC,
    ORACLE,
    PUBLISHED,
    families,
)
from papers.specdec_pp.tables import section_2_1, table_2

_LABELLED = (
    "K = 2",
    "K = 4",
    "K = 8",
    "K = 14",
    "h = 0.1",
    "h = 0.3",
    "h = 0.5",
    "h = 0.7",
    "h = 0.9",
)
# Colour, marker and line style. The heads share a colour.
_STYLES = {
    FIXED: (COLOURS[1], "s", "-"),
    HEURISTIC: (COLOURS[3], "D", ":"),
    "product": (COLOURS[4], "^", ":"),
    "confidence": (COLOURS[5], "v", ":"),
    "entropy": (COLOURS[2], "X", ":"),
    HEAD: (COLOURS[0], "o", "-"),
    PUBLISHED: (COLOURS[0], "P", "--"),
    FROM_ONE: (COLOURS[0], "<", "-."),
}
_OTHER_HEAD = ("#767676", "*", "--")


def draw(result: SpecDecResult, path: Path) -> None:
    """Draw figure 4 for each set, then costs, section 2.1 and tables 1 and 2.

    Raises:
        ConfigError: matplotlib is not installed, or the file cannot be written.
    """
    names = [None, *list(result.counts.sets)[:SHOWN_SETS]]
    rows = math.ceil(len(names) / PANELS_PER_ROW)
    heights = (
        rows * FIGURE_4_ROW,
        BELOW,
        max(BELOW, FRAME + TABLE_1_ROW * (len(result.counts.sets) + 4)),
    )
    figure = page(WIDTH, sum(heights) + FRAME)
    above, middle, below = figure.subfigures(3, 1, height_ratios=heights)
    panels = above.subplots(rows, min(len(names), PANELS_PER_ROW), squeeze=False).ravel()
    for axes, name in zip(panels, names, strict=False):
        _draw_rates(axes, result, name)
    for axes in panels[len(names) :]:
        axes.set_visible(False)
    handles, titles = panels[0].get_legend_handles_labels()
    above.legend(
        handles,
        titles,
        loc="outside lower center",
        ncols=5,
        frameon=False,
        fontsize=9,
        labelcolor=INK,
    )
    gains, oracle = middle.subplots(1, 2)
    _draw_gains(gains, result)
    compared(oracle, section_2_1(result), "speed-up", "paper's speed-up", "Llama-2 70B/7B, Alpaca")
    label(oracle, "Section 2.1: the oracle", "speed-up over plain decoding", "", "x")
    table_1, times = below.subplots(1, 2)
    _draw_table_1(table_1, result)
    table = table_2(result)
    series = [
        ("draft model", COLOURS[4], table.column("t_draft")),
        ("target", COLOURS[3], table.column("t_target")),
    ]
    bars(times, table.column(0), series)
    label(times, "Figure 3: time of a forward, by regression", "ms", "", "x")
    save(figure, path, setting(result), TITLE_COLUMNS)


def _draw_rates(axes: Any, result: SpecDecResult, name: str | None) -> None:
    for rule, methods in families(result.config.head).items():
        colour, marker, line = _STYLES.get(rule, _OTHER_HEAD)
        points = result.counts.points(methods.values(), name)
        front = pareto_front(points)
        axes.plot(*_columns(front), line, color=colour, linewidth=1.4)
        axes.plot(
            *_columns(points),
            linestyle="",
            marker=marker,
            markersize=6,
            markeredgecolor="white",
            color=colour,
            label=rule,
        )
        if name is None:
            _annotate(
                axes, {method: text for text, method in methods.items()}, points, rule == HEAD
            )
    oracle = result.counts.points([ORACLE], name)
    axes.plot(*_columns(oracle), linestyle="", marker="*", markersize=11, color=INK, label=ORACLE)
    axes.set_xscale("function", functions=(_root, _square))  # points are dense at low discard rates
    axes.set_xlim(left=0.0)
    ticks = [tick for tick in DISCARD_TICKS if tick <= axes.get_xlim()[1]]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    label(
        axes,
        f"Figure 4: {name or ALL}",
        "discarded tokens per new token",
        "target forwards per new token",
        "both",
    )


def _annotate(axes: Any, texts: dict[str, str], points: Sequence[RulePoint], under: bool) -> None:
    """Label the points with their lengths or thresholds, on one side of the fronts."""
    for point in points:
        if texts[point.method] in _LABELLED:
            axes.annotate(
                texts[point.method].partition("= ")[2],
                (point.discard_rate, point.verification_rate),
                (-4, -5) if under else (4, 5),
                textcoords="offset points",
                fontsize=8,
                color=INK,
                ha="right" if under else "left",
                va="top" if under else "bottom",
            )


def _draw_gains(axes: Any, result: SpecDecResult) -> None:
    """Draw the lowest latencies relative to the best fixed K, by the target's cost."""
    points = {
        rule: result.counts.points(methods.values())
        for rule, methods in families(result.config.head).items()
    }
    base = points[FIXED]
    for rule, rule_points in points.items():
        if rule != FIXED and rule_points and base:
            colour, _, line = _STYLES.get(rule, _OTHER_HEAD)
            gains = [_min_latency(base, x) / _min_latency(rule_points, x) for x in COST_RATIOS]
            axes.plot(COST_RATIOS, gains, line, color=colour, linewidth=1.6, label=rule)
    reference_line(axes)
    marks = {"the paper's pair": PAPER_RATIO}
    if result.pair_times is not None:
        marks["this pair"] = result.pair_times[1] / result.pair_times[0]
    for text, ratio_of in marks.items():
        axes.axvline(ratio_of, color=THEIRS, linewidth=1)
        left = ratio_of == min(marks.values())
        axes.annotate(
            text,
            (ratio_of, 0.02),
            (-3 if left else 3, 0),
            xycoords=("data", "axes fraction"),
            va="bottom",
            textcoords="offset points",
            fontsize=8,
            color=INK,
            rotation=90,
            ha="right" if left else "left",
        )
    axes.set_xscale("log", base=2)
    axes.set_xticks(RATIO_TICKS, [str(tick) for tick in RATIO_TICKS])
    axes.minorticks_off()
    label(
        axes,
        "Equation 2.3: best of each kind against the best fixed K",
        "target forward / draft forward",
        "tokens/s over those of the best fixed K",
        "both",
        4,
    )


def _draw_table_1(axes: Any, result: SpecDecResult) -> None:
    picks = [*(measured_picks(result.timed, result.config.head) if result.timed else ()), *TABLE_1]
    names = [f"paper: {pick.name}" if pick in TABLE_1 else pick.name for pick in picks]
    series = [
        ("best fixed K", COLOURS[1], [pick.speedup(pick.fixed) for pick in picks]),
        ("best threshold", OURS, [pick.speedup(pick.head) for pick in picks]),
        ("auto", COLOURS[2], [pick.speedup(pick.auto) for pick in picks]),
    ]
    bars(axes, names, series, 1.0)
    label(axes, "Table 1: best against best", "speed-up over plain decoding", "", "x")


def _root(values: Any) -> Any:
    return np.sign(values) * np.sqrt(np.abs(values))


def _square(values: Any) -> Any:
    return np.sign(values) * np.square(values)


def _min_latency(points: Sequence[RulePoint], target: float) -> float:
    """Return the lowest latency, in draft forward passes per token."""
    best = cheapest(points, 1.0, target)
    assert best is not None
    return latency(1.0, target, best)


def _columns(points: Sequence[RulePoint]) -> tuple[list[float], list[float]]:
    return [point.discard_rate for point in points], [point.verification_rate for point in points]
