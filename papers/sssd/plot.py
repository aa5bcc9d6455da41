"""Plot the results for the SSSD paper."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from paceline.report.drawing import (
    COLOURS,
    INK,
    MARKERS,
    THEIRS,
    label,
    line,
    marked_line,
    page,
    reference_line,
    save,
)
from papers.part import ratio, setting
from papers.sssd.acceptance import change_of_accepted, figure_4a, rivals
from papers.sssd.answers import temperature_name
from papers.sssd.paper_settings import (
    BATCHES,
    HEIGHTS,
    MICROSECOND_TICKS,
    PAGE,
    PAPER_TEMPERATURES,
    SHOWN_SETS,
    SPLIT_BATCH,
    TEMPERATURES,
    TIMED,
    TITLE_COLUMNS,
)
from papers.sssd.result import BOTH, NOTHING, REQUEST, STORE, SssdResult, published
from papers.sssd.roofline import free_budget
from papers.sssd.speed import MEASURED, ROOFLINE, best, by_the_clock, drafter, speeds

_SIZE_AXIS = "s_q, nodes of the tree and its root"
_STEP_AXIS = "tokens per step"
_MATMULS, _ATTENTION, _REST = COLOURS[5], COLOURS[4], THEIRS


def draw(result: SssdResult, path: Path) -> None:
    """Draw figures 2 to 4a, 4b and 4c for each set, section 4.2, and figure 5.

    Raises:
        ConfigError: matplotlib is not installed, or the file cannot be written.
    """
    figure = page(*PAGE)
    rows = figure.subfigures(len(HEIGHTS), 1, height_ratios=HEIGHTS)
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
    save(figure, path, setting(result), TITLE_COLUMNS)


def _draw_speed(axes: Any, result: SssdResult, batch: int) -> None:
    points = speeds(result, batch)
    sizes = [point.size for point in points]
    line(axes, sizes, [point.tokens for point in points], "tokens per step", COLOURS[4], "o")
    line(axes, sizes, [point.cost for point in points], "cost of a step, measured", COLOURS[0], "s")
    line(axes, sizes, [point.roofline for point in points], "cost, roofline", COLOURS[5], "", "--")
    top = best(points, MEASURED)
    name = "expected speed-up" if top is None else f"expected speed-up, best at s_q = {top.size}"
    line(axes, sizes, [point.product(MEASURED) for point in points], name, COLOURS[2], "^")
    line(
        axes,
        sizes,
        [point.product(ROOFLINE) for point in points],
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
        marked_line(axes, budget / batch, "free budget")
    axes.set_ylim(bottom=0)
    label(axes, f"Figure 2: batch of {batch}", _SIZE_AXIS, "over plain decoding", "both", 3)


def _draw_costs(panels: Any, result: SssdResult) -> None:
    """Draw figure 3: a step's time by part, for both numbers of cached tokens."""
    costs = result.costs
    for axes, context in zip(panels, costs.contexts if costs is not None else (), strict=False):
        steps = [] if costs is None else [step for step in costs.split() if step.context == context]
        sizes, total = [step.size for step in steps], [1e3 * step.seconds for step in steps]
        if all(step.rest is not None for step in steps):
            layers = [
                [1e3 * (part or 0.0) for part in parts]
                for parts in zip(
                    *((step.matmuls, step.attention, step.rest) for step in steps), strict=True
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
            [1e3 * step.roofline[0] for step in steps],
            "roofline: matrix products",
            COLOURS[0],
            "",
            "--",
        )
        line(
            axes,
            sizes,
            [1e3 * sum(step.roofline) for step in steps],
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
    for index, name in enumerate(rivals(study)):
        results = [
            (size, counts)
            for size in study.sizes
            if (counts := study.result(name, size)) is not None
        ]
        times = [counts.microseconds_per_step for _, counts in results]
        line(axes, [size for size, _ in results], times, name, COLOURS[index], MARKERS[index])
    axes.set_yscale("log")
    axes.set_yticks(MICROSECOND_TICKS, [f"{tick:,}" for tick in MICROSECOND_TICKS])
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
    names: list[str | None] = [*list(study.answers)[:SHOWN_SETS]] or [None]
    panels = row.subplots(1, len(names), squeeze=False, sharey=True)[0]
    for axes, name in zip(panels, names, strict=True):
        for index, method in enumerate(rivals(study)):
            rates = [study.rate(method, size, name) for size in study.sizes]
            line(axes, study.sizes, rates, method, COLOURS[index], MARKERS[index])
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
    temperatures = (0.0, *TEMPERATURES)
    columns = [(method, size) for size in study.sizes[1:] for method in study.fusions]
    for index, (method, size) in enumerate(columns):
        changes = [
            change_of_accepted(study, method, size, temperature_name(temperature))
            for temperature in temperatures
        ]
        line(
            axes,
            temperatures,
            [_percent(temperature) for temperature in changes],
            f"{method}, s_q = {size}",
            COLOURS[index],
            MARKERS[index],
        )
    paper = [_percent(PAPER_TEMPERATURES.get(temperature, 0.0)) for temperature in temperatures]
    line(axes, temperatures, paper, "the paper (Llama-2 7B)", THEIRS, "o", "--")
    label(
        axes,
        "Section 4.2: accepted tokens per step",
        "temperature",
        "change against greedy answers, %",
        "both",
        2,
    )


def _draw_vocabularies(axes: Any, result: SssdResult) -> None:
    vocabularies = result.vocabularies
    for index, (name, size) in enumerate(
        vocabularies.sizes.items() if vocabularies is not None else ()
    ):
        study = vocabularies.study if vocabularies is not None else NOTHING
        for method, style in zip(study.fusions, ("-", "--"), strict=True):
            rates = [study.rate(method, step_size, name) for step_size in study.sizes]
            line(
                axes,
                study.sizes,
                rates,
                f"{name} ({size:,}): {method}",
                COLOURS[index],
                MARKERS[index],
                style,
            )
    axes.set_ylim(bottom=0)
    label(axes, "Figure 5: the same answers in two vocabularies", _SIZE_AXIS, _STEP_AXIS, "both", 2)


def _percent(value: float | None) -> float | None:
    return None if value is None else 100 * value
