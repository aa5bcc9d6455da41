"""The picture of the Ouroboros paper measured again."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.bench import paper_ouroboros_tables as tables
from paceline.bench.drawing import COLOURS, INK, MARKERS, OURS, THEIRS, bars, headline, label, legend_below, page, save
from paceline.bench.paper_lines import Line, ratio
from paceline.bench.paper_report import setting_line

if TYPE_CHECKING:
    from paceline.bench.paper_ouroboros import OuroborosResult

_PAGE = (12.0, 14.0)  # inches
_TITLE_COLUMNS = 165
_GREEDY_COLUMN = 0  # of table 2: GSM8K, Yi
_SPEED_COLUMN = 1  # of table 3


def draw_ouroboros(result: OuroborosResult, path: Path) -> None:
    """Matches above, tables 2 and 3 as bars, figure 5 and table 4 below.

    Raises:
        ConfigError: matplotlib is not installed, or the file cannot be written.
    """
    figure = page(*_PAGE)
    above, middle, below = figure.subfigures(3, 1, height_ratios=(0.8, 1.3, 0.9))
    _draw_matches(result, *above.subplots(1, 2))
    table_2, table_3 = middle.subplots(1, 2)
    _draw_table(table_2, result, tables.TABLE_2, _GREEDY_COLUMN, "none", "Yi 34b/6b, GSM8K")
    label(table_2, "Table 2: methods", "speed-up over greedy decoding", "", "x")
    _draw_table(table_3, result, tables.TABLE_3, _SPEED_COLUMN, tables.NOTHING, "Yi 34b/6b, HumanEval")
    label(table_3, "Table 3: ablation", 'speed-up over "drafted in phrases"', "", "x")
    figure_5, table_4 = below.subplots(1, 2)
    _draw_suffixes(result, figure_5)
    _draw_orders(result, table_4)
    headline(figure, setting_line(result).split("; "), _TITLE_COLUMNS, 9)
    save(figure, path)


def _draw_matches(result: OuroborosResult, table_1: Any, figure_3: Any) -> None:
    tasks = tables.tasks_of(result.matches)
    paper = [(f"paper: {name}", values) for name, values in tables.TABLE_1_PAPER.items()]
    rows = [*((task.task, task.per_verification()) for task in tasks), *paper]
    series = [
        ("accepted, len(LCP)", COLOURS[1], [values[0] for _, values in rows]),
        ("match, #Match-1", OURS, [values[1] for _, values in rows]),
    ]
    bars(table_1, [name for name, _ in rows], series)
    label(table_1, f"Table 1: of {tables.MATCH_GAMMA} drafted tokens", "tokens per verification", "", "x")
    for place, task in enumerate(tasks):
        means = task.per_rejection()
        _line(figure_3, range(1, len(means) + 1), means, place, task.task)
    figure_3.set_ylim(bottom=0)
    label(figure_3, "Figure 3: common substrings among the discarded tokens", "k", "#Match-k per rejection", "both")
    if tasks:
        figure_3.legend(frameon=False, fontsize=9, labelcolor=INK)


def _draw_table(axes: Any, result: OuroborosResult, lines: Seq[Line], column: int, base: str, setting: str) -> None:
    mine = [ratio(result.methods, line.method, base) for line in lines]
    theirs = [line.paper[column] if line.paper else None for line in lines]
    bars(axes, [line.label for line in lines], [("here", OURS, mine), (f"the paper ({setting})", THEIRS, theirs)], 1.0)


def _draw_suffixes(result: OuroborosResult, axes: Any) -> None:
    for place, (published, name) in enumerate(((True, "the paper's gamma, W, N"), (False, "default here"))):
        for processor, style in ((False, "-"), (True, ":")):
            base = tables.figure_5_spec(0, published)
            ratios = [(k, ratio(result.methods, tables.figure_5_spec(k, published), base, processor)) for k in tables.SUFFIXES]
            known = [(k, one) for k, one in ratios if one is not None]
            title = f"{name}, processor time" if processor else name
            _line(axes, [k for k, _ in known], [one for _, one in known], place, title, style)
    axes.set_xticks(tables.SUFFIXES)
    label(axes, "Figure 5: suffixes behind the draft", "K", "tokens/s over those of K = 0", "both")
    legend_below(axes, 2)


def _draw_orders(result: OuroborosResult, axes: Any) -> None:
    rows = [row for row in tables.TABLE_4 if row[1]]
    mine = [ratio(tables.order_of(result.orders, result.size, number), tables.WARM, tables.COLD) for number, _, _ in rows]
    theirs = [tables.paper_gain(number, rate) for number, _, rate in rows]
    names = [tables.order_label(result.size, number, warm) for number, warm, _ in rows]
    bars(axes, names, [("here", OURS, mine), ("the paper (Yi 34b/6b)", THEIRS, theirs)], 1.0)
    label(axes, "Table 4: warm pool, order of the prompts", "speed-up over a cold pool", "", "x")


def _line(axes: Any, places: Seq[int], values: Seq[float], number: int, name: str, style: str = "-") -> None:
    colour, marker = COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)]
    axes.plot(
        places, values, style, color=colour, marker=marker, markersize=6, markeredgecolor="white", linewidth=1.4, label=name
    )  # fmt: skip
