"""Plot the results for the Ouroboros paper."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from paceline.report.drawing import (
    COLOURS,
    INK,
    MARKERS,
    OURS,
    bars,
    compared,
    label,
    line,
    page,
    save,
)
from papers.ouroboros import paper_settings, tables
from papers.ouroboros.paper_settings import (
    PAGE,
    TITLE_COLUMNS,
)
from papers.ouroboros.result import OuroborosResult
from papers.part import ratio, setting


def draw(result: OuroborosResult, path: Path) -> None:
    """Draw the matches, tables 2 and 3 as bar charts, figure 5 and table 4.

    Raises:
        ConfigError: matplotlib is not installed, or the file cannot be written.
    """
    figure = page(*PAGE)
    above, middle, below = figure.subfigures(3, 1, height_ratios=(0.8, 1.3, 0.9))
    _draw_matches(result, *above.subplots(1, 2))
    left, right = middle.subplots(1, 2)
    compared(left, tables.table_2(result.methods), "speed-up", "GSM8K Yi", "Yi 34b/6b, GSM8K")
    label(left, "Table 2: methods", "speed-up over greedy decoding", "", "x")
    compared(
        right,
        tables.table_3(result.methods),
        "speed-up",
        "paper's speed-up",
        "Yi 34b/6b, HumanEval",
    )
    label(right, "Table 3: ablation", 'speed-up over "drafted in phrases"', "", "x")
    figure_5, table_4 = below.subplots(1, 2)
    _draw_suffixes(result, figure_5)
    _draw_orders(result, table_4)
    save(figure, path, setting(result), TITLE_COLUMNS)


def _draw_matches(result: OuroborosResult, table_1: Any, figure_3: Any) -> None:
    tasks = tables.tasks_of(result.matches)
    paper = [(f"paper: {name}", values) for name, values in paper_settings.TABLE_1_PAPER.items()]
    rows = [*((task.task, task.per_verification()) for task in tasks), *paper]
    series = [
        ("accepted, len(LCP)", COLOURS[1], [values[0] for _, values in rows]),
        ("match, #Match-1", OURS, [values[1] for _, values in rows]),
    ]
    bars(table_1, [name for name, _ in rows], series)
    label(
        table_1,
        f"Table 1: of {paper_settings.MATCH_GAMMA} drafted tokens",
        "tokens per verification",
        "",
        "x",
    )
    for index, task in enumerate(tasks):
        means = task.per_rejection()
        line(
            figure_3,
            range(1, len(means) + 1),
            means,
            task.task,
            COLOURS[index % len(COLOURS)],
            MARKERS[index % len(MARKERS)],
        )
    figure_3.set_ylim(bottom=0)
    label(
        figure_3,
        "Figure 3: common substrings among the discarded tokens",
        "k",
        "#Match-k per rejection",
        "both",
    )
    if tasks:
        figure_3.legend(frameon=False, fontsize=9, labelcolor=INK)


def _draw_suffixes(result: OuroborosResult, axes: Any) -> None:
    for index, (published, name) in enumerate(
        ((True, "the paper's gamma, W, N"), (False, "default"))
    ):
        specs = [paper_settings.figure_5_spec(k, published) for k in paper_settings.SUFFIXES]
        for field, title, style in (
            ("tokens_per_second", name, "-"),
            ("cpu_speedup", f"{name}, processor time", ":"),
        ):
            ratios = [ratio(result.methods, spec, specs[0], field) for spec in specs]
            line(
                axes, paper_settings.SUFFIXES, ratios, title, COLOURS[index], MARKERS[index], style
            )
    axes.set_xticks(paper_settings.SUFFIXES)
    label(
        axes, "Figure 5: suffixes after the draft", "K", "tokens/s over those of K = 0", "both", 2
    )


def _draw_orders(result: OuroborosResult, axes: Any) -> None:
    table = tables.table_4(result)
    rows = tuple(
        row for row, (_, warm, _) in zip(table.rows, paper_settings.TABLE_4, strict=True) if warm
    )
    compared(
        axes, dataclasses.replace(table, rows=rows), "speed-up", "paper's speed-up", "Yi 34b/6b"
    )
    label(axes, "Table 4: warm pool, order of the prompts", "speed-up over a cold pool", "", "x")
