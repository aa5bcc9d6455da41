"""Build the SSSD paper's tables and figures about the cost of a step.

The paper is Marzollo et al. 2024.
"""

from __future__ import annotations

from paceline.report.tables import Cell, Column, Table
from papers.part import CPU_TIME, PICTURE, SPEEDUP, cells, columns
from papers.sssd.acceptance import (
    PER_STEP,
    figure_4a,
    figure_4bc,
    figure_5,
    section_4_2,
)
from papers.sssd.paper_settings import (
    BATCHES,
    EVALUATED,
    PAPER_BUDGET,
    PAPER_BUDGET_SIZE,
    SPLIT_BATCH,
    TIMED,
)
from papers.sssd.paper_shapes import ASCEND, LLAMA_2_7B
from papers.sssd.result import CostStudy, SssdResult
from papers.sssd.roofline import Peak, free_budget
from papers.sssd.speed import COSTS, MEASURED, best, by_the_clock, drafter, speeds

_EVALUATED = {"MFLOP": ".2f", "MB": ".3f", "FLOPs:IO": ".1f"}
_MATMUL = ("2 b s_q n m", "b s_q n + n m", "b s_q m", "2 b s_q")
_ATTENTION = ("4 b s_q (s_q + s_kv) n d", "b n (2 s_kv + 3 s_q) d + mask", "b n s_q d", "2 s_q")


def sections(result: SssdResult) -> list[Table]:
    """Return every table and figure in the order of the paper."""
    return [
        *(figure_2(result, batch) for batch in BATCHES),
        figure_2_timed(result),
        table_1(result.costs),
        budgets(result.costs),
        figure_3(result.costs),
        figure_4a(result),
        figure_4bc(result),
        section_4_2(result),
        figure_5(result),
    ]


def figure_2(result: SssdResult, batch: int) -> Table:
    """Return figure 2: tokens per step, the cost of a step, and their quotient."""
    points, costs = speeds(result, batch), result.costs
    top = {kind: best(points, kind) for kind in COSTS}
    rows = []
    for point in points:
        products = {kind: point.product(kind) for kind in COSTS}
        marked = {
            kind: value and (value, "*" * (point is top[kind])) for kind, value in products.items()
        }
        rows.append(
            (
                point.size,
                point.tokens,
                point.published,
                *(cell for kind in COSTS for cell in (point.costs(kind), marked[kind])),
            )
        )
    measured = (
        f"medians of {costs.rounds} forward passes of {costs.label} after"
        f" {costs.contexts[0]} cached tokens"
        if costs
        else "-"
    )
    notes = (
        f"{PER_STEP} cost: time of a forward pass relative to s_q = 1; product: expected speed,"
        " which is tokens per step divided by cost; *: the best s_q. As in the paper's figure, the"
        " time for drafting is not included.",
        f"Measured: {measured}; CPU time: the same ratio, computed from processor time, which"
        " other jobs affect less. roofline: computed from table 1 and this machine's peak rates."
        " 910B4: the same for the paper's device and Llama-2 7B, with the tokens per step that"
        " were measured here.",
        *([PICTURE] if batch == SPLIT_BATCH else []),
    )
    kinds = [
        column
        for kind in COSTS
        for column in (f"cost {kind}", Column(f"product {kind}", "{:.2f}{}"))
    ]
    title = (
        "Figure 2: Each row shows the tokens per step and the cost of a step with s_q query tokens"
        f" per request, at batch size {batch}"
    )
    return Table.of(title, [Column("s_q"), "tokens/ step", "paper's weights", *kinds], rows, notes)


def figure_2_timed(result: SssdResult) -> Table:
    """Return the expected and the measured speed-ups."""
    headings = ("speed-up", "CPU time", "S", "equal")
    expected = {
        batch: {point.size: point.product(MEASURED) for point in speeds(result, batch)}
        for batch in BATCHES
    }
    rows = []
    for size in TIMED:
        row: list[Cell] = [size]
        for batch in BATCHES:
            clock = cells(by_the_clock(result, batch), drafter(size, result.store), headings)
            row += [expected[batch].get(size), *clock]
        rows.append(row)
    notes = (
        f"expected: the speed-up predicted by figure 2 (tokens per step / cost of a step)."
        f" {SPEEDUP} The measured times include drafting and prefill."
        f" {CPU_TIME}",
        "S: tokens per forward pass after the prefill. Unlike tokens per step, S does not count the"
        " first token of an answer.",
        *(part.equality() for part in result.timed[:1]),
    )
    shown = [
        column
        for batch in BATCHES
        for column in (f"expected, b = {batch}", *columns(headings, after=f", b = {batch}"))
    ]
    title = (
        "Figure 2, measured: Each row shows expected and measured speed-ups of sssd with s_q query"
        " tokens per request and batch size b"
    )
    return Table.of(title, [Column("s_q"), *shown], rows, notes)


def table_1(costs: CostStudy | None) -> Table:
    """Return table 1: FLOPs and memory traffic, as formulas and for this model."""
    evaluated_columns = [
        Column(f"{kind} s_q = {size}", form)
        for size in EVALUATED
        for kind, form in _EVALUATED.items()
    ]
    shown = [
        "operation",
        "shape",
        Column("times"),
        "FLOPs",
        "read",
        "written",
        "FLOPs:IO approx.",
        *evaluated_columns,
    ]
    title = "Table 1: Each row shows the FLOPs and the memory traffic of an operation"
    if costs is None:
        return Table.of(title, shown, ())
    shapes, context = costs.shapes, costs.contexts[0]
    evaluated = [
        [*shapes.products(SPLIT_BATCH, size), shapes.attention(SPLIT_BATCH, size, context)]
        for size in EVALUATED
    ]
    kinds = [(f"{work.inputs} x {work.outputs}", _MATMUL) for work in shapes.matmuls]
    kinds.append((f"{shapes.heads} x {shapes.head_size}", _ATTENTION))
    rows = []
    for (shape, formulas), *works in zip(kinds, *evaluated, strict=True):
        values = [
            (work.flops / 1e6, (work.read + work.written) / 1e6, work.intensity * shapes.width)
            for work in works
        ]
        rows.append(
            (
                works[0].name,
                shape,
                works[0].count,
                *formulas,
                *(value for values_of_size in values for value in values_of_size),
            )
        )
    notes = (
        "The formulas are those of the paper, with IO in numbers. b: number of requests; s_q and"
        " s_kv: number of query tokens and cached tokens of each request; n x m: size of the"
        " weights. For attention, n is the number of heads, and d is their size. If heads"
        " share keys and values, n is smaller for these. approx.: for large n and m, or s_kv.",
        f"The values are for one occurrence, with b = {SPLIT_BATCH}, s_kv = {context} and"
        f" {shapes.width} bytes per number. Unlike the paper's table, this table includes the third"
        " matrix of a gated MLP and the LM head.",
    )
    return Table.of(title, shown, rows, notes)


def budgets(costs: CostStudy | None) -> Table:
    """Return the free budget: query tokens that cost almost nothing in a forward pass."""

    def row(name: str, peak: Peak, hidden: int, width: int) -> tuple[Cell, ...]:
        budget = free_budget(hidden, peak, width)
        return (
            name,
            peak.flops / 1e12,
            peak.bandwidth / 1e12,
            peak.ratio,
            hidden,
            budget,
            budget and budget / SPLIT_BATCH,
        )

    rows = [
        row("910B4, Llama-2 7B, the paper's equation", ASCEND, LLAMA_2_7B.hidden, LLAMA_2_7B.width),
        (
            "910B4, Llama-2 7B, the paper's text",
            *[None] * 4,
            str(PAPER_BUDGET),
            str(PAPER_BUDGET_SIZE),
        ),
    ]
    if costs is not None:
        rows.append(
            row(f"this machine, {costs.label}", costs.peak, costs.shapes.hidden, costs.shapes.width)
        )
    notes = (
        "At the free budget, the arithmetic of a matrix product takes as long as its memory"
        " traffic. The free budget is the s_q that solves 1 / (w (1/h + 1 / (2 b s_q))) = F / M."
        " In this equation, w is the number of bytes per value, F the device's peak FLOP/s, and M"
        " its memory bandwidth in bytes/s. A dash means that there is no solution: products of"
        " this width are always memory-bound. For the paper's device, the paper's equation gives"
        " b s_q ="
        f" {free_budget(LLAMA_2_7B.hidden, ASCEND):.0f}, but the paper's text says {PAPER_BUDGET}.",
        "this machine: FLOP/s were measured with a large matrix product, and bytes/s with a large"
        " sum, both in the model's dtype. Weights that fit into a cache are read faster.",
    )
    shown = [
        Column("device and model"),
        Column("TFLOP/s", ".4g"),
        Column("TB/s", ".3g"),
        Column("FLOPs per byte", ".3g"),
        Column("h"),
        Column("b s_q", ".1f"),
        Column(f"s_q at b = {SPLIT_BATCH}", ".1f"),
    ]
    title = (
        "Section 3.2.1: Each row shows the free budget of a device, as query tokens per request"
        " (s_q) and per batch (b s_q), for hidden size h and batch size b"
    )
    return Table.of(title, shown, rows, notes)


def figure_3(costs: CostStudy | None) -> Table:
    """Return figure 3: times of matrix products and attention, measured and modelled."""
    rows = []
    for step in costs.split() if costs is not None else ():
        values = (
            step.seconds,
            step.matmuls,
            step.attention,
            step.rest,
            *step.roofline,
            sum(step.roofline),
        )
        rows.append((f"{step.context}, {step.size}", *(value and 1e3 * value for value in values)))
    notes = (
        f"Milliseconds per forward pass at batch {SPLIT_BATCH}. products: all linear modules,"
        " including the LM head. attention: the rest of the attention modules, including positions"
        " and the KV cache. rest: norms, embedding, masks, Python. The parts were timed in"
        " separate, slower forward passes. The table shows their shares of the total time in the"
        " column 'ms'.",
        PICTURE,
    )
    kinds = ("products", "attention")
    shown = (
        "s_kv, s_q",
        "ms",
        *kinds,
        "rest",
        *(f"roofline: {kind}" for kind in kinds),
        "roofline: all",
    )
    title = (
        "Figure 3: Each row shows the time of matrix products and attention with s_kv cached tokens"
        " and s_q query tokens per request"
    )
    return Table.of(title, shown, rows, notes)
