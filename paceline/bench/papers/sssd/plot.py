"""The picture of the SSSD paper measured again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from paceline.bench.papers.part import ratio, setting
from paceline.bench.papers.sssd.acceptance import (
    PAPER_TEMPERATURES,
    change_of_accepted,
    figure_4a,
    rivals,
)
from paceline.bench.papers.sssd.answers import TEMPERATURES, temperature_name
from paceline.bench.papers.sssd.result import (
    BATCHES,
    BOTH,
    NOTHING,
    REQUEST,
    SPLIT_BATCH,
    STORE,
    SssdResult,
    published,
)
from paceline.bench.papers.sssd.speed import (
    MEASURED,
    ROOFLINE,
    TIMED,
    best,
    by_the_clock,
    drafter,
    speeds,
)
from paceline.plan.roofline import free_budget
from paceline.report.drawing import (
    COLOURS,
    INK,
    MARKERS,
    THEIRS,
    label,
    line,
    page,
    reference_line,
    save,
)

_PAGE = (13.0, 21.0)  # inches
_HEIGHTS = (1.0, 1.0, 1.0, 0.9, 0.9)
_TITLE_COLUMNS = 165
_SIZE_AXIS = "s_q, nodes of the tree and its root"
_STEP_AXIS = "tokens per step"
_SHOWN_SETS = 4
_TICKS = (20, 50, 100, 200, 500, 1000, 2000)  # microseconds
_MATMULS, _ATTENTION, _REST = COLOURS[5], COLOURS[4], THEIRS


def draw(result: SssdResult, path: Path) -> None:
    """Draw figures 2, 3 and 4a, figures 4b and c per set of prompts, section 4.2 and figure 5, from
    above.

    Raises:
        ConfigError: matplotlib is not installed, or the file cannot be written.
    """
    figure = page(*_PAGE)
    rows = figure.subfigures(len(_HEIGHTS), 1, height_ratios=_HEIGHTS)
    for axes, batch in zip(rows[0].subplots(1, len(BATCHES)), BATCHES, strict=True):
        _draw_speed(axes, result, batch)
    _draw_costs(rows[1].subplots(1, 2), result)
    sources, retrieval = rows[2].subplots(1, 2)
    _draw_sources(sources, result)
    _draw_retrieval(retrieval, result)
    _draw_rivals(rows[3], result)
    temperatures, vocabularies = rows[4].subplots(1, 2)
    _draw_temperatures(temperatures, result)
    _draw_vocabularies(vocabularies, result)
    save(figure, path, setting(result), _TITLE_COLUMNS)


def _draw_speed(axes: Any, result: SssdResult, batch: int) -> None:
    found = speeds(result, batch)
    sizes = [one.size for one in found]
    line(axes, sizes, [one.tokens for one in found], "tokens per step", COLOURS[4], "o")
    line(axes, sizes, [one.cost for one in found], "cost of a step, measured", COLOURS[0], "s")
    line(axes, sizes, [one.roofline for one in found], "cost, roofline", COLOURS[5], "", "--")
    top = best(found, MEASURED)
    name = "expected speed-up" if top is None else f"expected speed-up, best at s_q = {top.size}"
    line(axes, sizes, [one.product(MEASURED) for one in found], name, COLOURS[2], "^")
    line(
        axes,
        sizes,
        [one.product(ROOFLINE) for one in found],
        "expected, roofline",
        COLOURS[2],
        "",
        "--",
    )
    part = by_the_clock(result, batch)
    clock = [ratio(part, drafter(size, result.store)) for size in TIMED]
    line(axes, TIMED, clock, "by the clock", INK, "D", "None")
    if top is not None:
        axes.plot(
            [top.size],
            [top.product(MEASURED)],
            "o",
            markersize=14,
            markerfacecolor="none",
            color=COLOURS[2],
        )
    reference_line(axes)
    budget = None
    if result.costs is not None:
        budget = free_budget(
            result.costs.shapes.hidden, result.costs.peak, result.costs.shapes.width
        )
    if budget is not None and sizes and 1 <= budget / batch <= sizes[-1]:
        axes.axvline(budget / batch, color=THEIRS, linewidth=1)
        axes.annotate(
            "free budget",
            (budget / batch, 0.98),
            (3, 0),
            xycoords=("data", "axes fraction"),
            va="top",
            textcoords="offset points",
            fontsize=8,
            color=INK,
        )
    axes.set_ylim(bottom=0)
    label(axes, f"Figure 2: batch of {batch}", _SIZE_AXIS, "over plain decoding", "both", 3)


def _draw_costs(panels: Any, result: SssdResult) -> None:
    """Figure 3: what a step takes, stacked, behind few and behind many cached tokens."""
    costs = result.costs
    for axes, context in zip(panels, costs.contexts if costs is not None else (), strict=False):
        steps = [] if costs is None else [one for one in costs.split() if one.context == context]
        sizes, total = [one.size for one in steps], [1e3 * one.seconds for one in steps]
        if all(one.rest is not None for one in steps):
            layers = [
                [1e3 * (part or 0.0) for part in parts]
                for parts in zip(
                    *((one.matmuls, one.attention, one.rest) for one in steps), strict=True
                )
            ]
            axes.stackplot(
                sizes,
                *layers,
                colors=(_MATMULS, _ATTENTION, _REST),
                labels=("matrix products", "attention", "rest"),
                alpha=0.8,
            )
        line(axes, sizes, total, "a forward, measured", INK, "o")
        line(
            axes,
            sizes,
            [1e3 * one.roofline[0] for one in steps],
            "roofline: matrix products",
            COLOURS[0],
            "",
            "--",
        )
        line(
            axes,
            sizes,
            [1e3 * sum(one.roofline) for one in steps],
            "roofline: with attention",
            COLOURS[1],
            "",
            "--",
        )
        axes.set_ylim(bottom=0)
        label(
            axes,
            f"Figure 3: batch of {SPLIT_BATCH}, {context} cached tokens",
            _SIZE_AXIS,
            "ms per forward",
            "both",
            3,
        )


def _draw_sources(axes: Any, result: SssdResult) -> None:
    table = figure_4a(result)
    shown = (
        (BOTH, COLOURS[0], "-"),
        (REQUEST, COLOURS[1], "-"),
        (published(BOTH), COLOURS[0], "--"),
        (published(REQUEST), COLOURS[1], "--"),
        (published(STORE), COLOURS[2], "--"),
    )
    for (name, colour, style), marker in zip(shown, MARKERS, strict=False):
        line(axes, table.column("s_q"), table.column(name), name, colour, marker, style)
    reference_line(axes)
    axes.set_ylim(bottom=0)
    label(axes, "Figure 4a: tokens per step by source", _SIZE_AXIS, _STEP_AXIS, "both", 3)


def _draw_retrieval(axes: Any, result: SssdResult) -> None:
    study = result.replays or NOTHING
    for place, name in enumerate(rivals(study)):
        found = [
            (size, one) for size in study.sizes if (one := study.result(name, size)) is not None
        ]
        times = [one.microseconds_per_step for _, one in found]
        line(axes, [size for size, _ in found], times, name, COLOURS[place], MARKERS[place])
    axes.set_yscale("log")
    axes.set_yticks(_TICKS, [f"{tick:,}" for tick in _TICKS])
    axes.minorticks_off()
    label(
        axes,
        "Figures 4b and 4c: time of retrieval",
        _SIZE_AXIS,
        "microseconds per sequence and step",
        "both",
        4,
    )


def _draw_rivals(row: Any, result: SssdResult) -> None:
    study = result.replays or NOTHING
    names: list[str | None] = [*list(study.answers)[:_SHOWN_SETS]] or [None]
    panels = row.subplots(1, len(names), squeeze=False, sharey=True)[0]
    for axes, name in zip(panels, names, strict=True):
        for place, method in enumerate(rivals(study)):
            rates = [study.rate(method, size, name) for size in study.sizes]
            line(axes, study.sizes, rates, method, COLOURS[place], MARKERS[place])
        label(
            axes,
            f"Figure 4b, c: {name or 'all'}",
            "s_q",
            _STEP_AXIS if axes is panels[0] else "",
            "both",
        )
    panels[0].set_ylim(bottom=0)
    handles, titles = panels[0].get_legend_handles_labels()
    if handles:
        row.legend(
            handles,
            titles,
            loc="outside lower center",
            ncols=4,
            frameon=False,
            fontsize=8,
            labelcolor=INK,
        )


def _draw_temperatures(axes: Any, result: SssdResult) -> None:
    study = result.temperatures or NOTHING
    places = (0.0, *TEMPERATURES)
    columns = [(method, size) for size in study.sizes[1:] for method in study.fusions]
    for place, (method, size) in enumerate(columns):
        changes = [change_of_accepted(study, method, size, temperature_name(one)) for one in places]
        line(
            axes,
            places,
            [_percent(one) for one in changes],
            f"{method}, s_q = {size}",
            COLOURS[place],
            MARKERS[place],
        )
    paper = [_percent(PAPER_TEMPERATURES.get(one, 0.0)) for one in places]
    line(axes, places, paper, "the paper (Llama-2 7B)", THEIRS, "o", "--")
    label(
        axes,
        "Section 4.2: accepted tokens per step",
        "temperature",
        "change against greedy answers, %",
        "both",
        2,
    )


def _draw_vocabularies(axes: Any, result: SssdResult) -> None:
    found = result.vocabularies
    for place, (name, size) in enumerate(found.sizes.items() if found is not None else ()):
        study = found.study if found is not None else NOTHING
        for method, style in zip(study.fusions, ("-", "--"), strict=True):
            rates = [study.rate(method, one, name) for one in study.sizes]
            line(
                axes,
                study.sizes,
                rates,
                f"{name} ({size:,}): {method}",
                COLOURS[place],
                MARKERS[place],
                style,
            )
    axes.set_ylim(bottom=0)
    label(axes, "Figure 5: the same answers in two vocabularies", _SIZE_AXIS, _STEP_AXIS, "both", 2)


def _percent(value: float | None) -> float | None:
    return None if value is None else 100 * value
