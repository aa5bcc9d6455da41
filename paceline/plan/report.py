"""Show plans as tables, and write them as JSON and as a plot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console

from paceline.plan.plan_settings import PAGE_INCHES, TITLE_COLUMNS
from paceline.plan.planning import Plan, Step
from paceline.plan.roofline import Operation, Peak
from paceline.report.documents import DocumentKind, write_document
from paceline.report.drawing import (
    COLOURS,
    INK,
    label,
    line,
    marked_line,
    page,
    reference_line,
    save,
)
from paceline.report.tables import Column, Table

KIND = DocumentKind("paceline plan", 1, Plan)
_SIZE_AXIS = "s_q, nodes of the tree and its root"


def tables(plan: Plan) -> list[Table]:
    """Return three tables: costs by size, best size by batch, and operations."""
    sections = [_by_size(plan), _by_batch(plan)]
    if plan.peak is not None:
        sections.append(_operations(plan, plan.peak))
    return sections


def print_plan(plan: Plan, console: Console | None = None) -> None:
    """Print the tables of a plan, by default on standard output."""
    for table in tables(plan):
        table.show(console or Console(highlight=False))


def write_plan(plan: Plan, path: Path) -> None:
    """Write the plan and its tables as JSON.

    Raises:
        ConfigError: The file cannot be written.
    """
    write_document(
        path,
        KIND,
        plan,
        sections=[table.data() for table in tables(plan)],
        speedup=plan.best.speedup,
    )


def draw_plan(plan: Plan, path: Path) -> None:
    """Plot speed-up and cost by tree size, shares of time, and the best size by batch.

    Raises:
        ConfigError: matplotlib is not installed, or the file cannot be written.
    """
    figure = page(*PAGE_INCHES)
    speed, parts, batches = figure.subplots(1, 3)
    _draw_speed(speed, plan)
    _draw_parts(parts, plan)
    _draw_batches(batches, plan)
    save(
        figure,
        path,
        [plan.model, plan.hardware, f"tokens per forward of {plan.acceptance}"],
        TITLE_COLUMNS,
    )


def _by_size(plan: Plan) -> Table:
    rows = [
        (
            f"{step.size}{'*' * (step.size == plan.best.size)}",
            step.tokens,
            _ms(step.seconds),
            _ms(step.products),
            _ms(step.attention),
            step.relative,
            step.speedup,
            step.tokens_per_second,
        )
        for step in plan.steps
    ]
    columns = [
        Column("s_q"),
        "tokens/ forward",
        Column("ms", ".4g"),
        Column("products", ".4g"),
        Column("attention", ".4g"),
        "cost",
        "speed-up",
        Column("tokens/s", ",.0f"),
    ]
    budget = (
        ()
        if plan.budget is None
        else (
            "Free budget, the b s_q up to which [h, h] products are memory-bound:"
            f" {plan.budget:.0f}; s_q {plan.budget / plan.batch:.1f} here.",
        )
    )
    notes = (
        "s_q: query tokens per request, the newest token and the draft nodes; *: the best. cost:"
        " time over that of plain decoding. speed-up: tokens per forward over cost. tokens/s: of"
        " the batch.",
        f"Tokens per forward: {plan.acceptance}.",
        *budget,
        *plan.notes,
    )
    title = (
        f"{plan.model} on {plan.hardware}, batch {plan.batch} after {plan.context} cached tokens"
    )
    return Table.of(title, columns, rows, notes)


def _by_batch(plan: Plan) -> Table:
    rows = [
        (step.batch, step.size, step.tokens, step.relative, step.speedup, step.tokens_per_second)
        for step in plan.batches
    ]
    columns = [
        Column("batch"),
        Column("best s_q"),
        "tokens/ forward",
        "cost",
        "speed-up",
        Column("tokens/s", ",.0f"),
    ]
    return Table.of("The best size by batch", columns, rows)


def _operations(plan: Plan, peak: Peak) -> Table:
    rows = [
        (before.name, before.count, *_figures(before, peak), *_figures(after, peak))
        for before, after in zip(plan.plain, plan.drafted, strict=True)
    ]
    sizes = (1, plan.best.size)
    columns = [
        Column(f"{name} s_q = {size}", form)
        for size in sizes
        for name, form in (
            ("MFLOP", ",.4g"),
            ("MB", ",.4g"),
            ("FLOPs per byte", ".4g"),
            ("bound", ""),
        )
    ]
    notes = (
        f"The values are for one occurrence. The machine computes {peak.ratio:.4g} FLOPs in the"
        " time that it takes to move one byte. Operations with fewer FLOPs per byte are"
        " memory-bound.",
    )
    return Table.of(
        "Operations in a forward pass",
        [Column("operation"), Column("times"), *columns],
        rows,
        notes,
    )


def _figures(work: Operation, peak: Peak) -> tuple[float, float, float, str]:
    moved = work.read + work.written
    return (
        work.flops / 1e6,
        moved / 1e6,
        work.intensity,
        "memory" if work.intensity < peak.ratio else "arithmetic",
    )


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else 1e3 * seconds


def _draw_speed(axes: Any, plan: Plan) -> None:
    sizes = [step.size for step in plan.steps]
    line(axes, sizes, [step.tokens for step in plan.steps], "tokens per forward", COLOURS[4], "o")
    line(
        axes,
        sizes,
        [step.relative for step in plan.steps],
        "cost of a forward pass",
        COLOURS[0],
        "s",
    )
    line(
        axes,
        sizes,
        [step.speedup for step in plan.steps],
        f"speed-up, best at s_q = {plan.best.size}",
        COLOURS[2],
        "^",
    )
    axes.plot(
        [plan.best.size],
        [plan.best.speedup],
        "o",
        markersize=14,
        markerfacecolor="none",
        color=COLOURS[2],
    )
    reference_line(axes)
    _mark_budget(axes, plan)
    axes.set_ylim(bottom=0)
    label(
        axes,
        f"Batch {plan.batch} after {plan.context} cached tokens",
        _SIZE_AXIS,
        "over plain decoding",
        "both",
        2,
    )


def _draw_parts(axes: Any, plan: Plan) -> None:
    known = [step for step in plan.steps if step.products is not None]
    if known:
        layers = [
            [1e3 * (part or 0.0) for part in parts]
            for parts in zip(*((s.products, s.attention) for s in known), strict=True)
        ]
        sizes = [step.size for step in known]
        axes.stackplot(
            sizes,
            *layers,
            colors=COLOURS[5:3:-1],
            labels=("matrix products", "attention"),
            alpha=0.8,
        )
        _mark_budget(axes, plan)
    line(
        axes,
        [step.size for step in plan.steps],
        [1e3 * step.seconds for step in plan.steps],
        "a forward",
        INK,
    )
    axes.set_ylim(bottom=0)
    label(axes, "Time of a forward pass", _SIZE_AXIS, "ms", "both", 3)


def _draw_batches(axes: Any, plan: Plan) -> None:
    batches = [step.batch for step in plan.batches]
    line(axes, batches, [step.size for step in plan.batches], "best s_q", COLOURS[1], "s")
    right_axis = axes.twinx()
    line(right_axis, batches, [step.speedup for step in plan.batches], "speed-up", COLOURS[2], "^")
    right_axis.set_ylim(bottom=0)
    right_axis.set_ylabel("speed-up", fontsize=9, color=COLOURS[2])
    axes.set_xscale("log", base=2)
    axes.set_xticks(batches, [str(batch) for batch in batches])
    axes.set_ylim(bottom=0)
    label(axes, "The best size by batch", "batch", "best s_q", "both", 2)


def _mark_budget(axes: Any, plan: Plan) -> None:
    last: Step = plan.steps[-1]
    if plan.budget is not None and 1 <= plan.budget / plan.batch <= last.size:
        marked_line(axes, plan.budget / plan.batch, "free budget")
