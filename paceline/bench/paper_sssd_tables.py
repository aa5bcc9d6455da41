"""The tables and figures of the SSSD paper (Marzollo et al. 2024): what a step costs, and what is to be expected of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paceline.bench.paper import Section
from paceline.bench.paper_lines import CPU_TIME, SPEEDUP, cells, text_of
from paceline.bench.paper_sssd_acceptance import PER_STEP, PICTURE, figure_4a, figure_4bc, figure_5, section_4_2
from paceline.bench.sssd_costs import BATCHES, SPLIT_BATCH, CostStudy
from paceline.bench.sssd_roofline import ASCEND, LLAMA_2_7B, Peak, free_budget
from paceline.bench.sssd_speed import COSTS, MEASURED, TIMED, best, by_the_clock, drafter, speeds

if TYPE_CHECKING:
    from paceline.bench.paper_sssd import SssdResult

PAPER_BUDGET, PAPER_BUDGET_SIZE = 435, 54  # b s_q, and s_q at batch 8, as the text has it
EVALUATED = (1, 16)  # s_q at which table 1 is evaluated, at batch 8
_MATMUL = ("2 b s_q n m", "b s_q n + n m", "b s_q m", "2 b s_q")
_ATTENTION = ("4 b s_q (s_q + s_kv) n d", "b n (2 s_kv + 3 s_q) d + mask", "b n s_q d", "2 s_q")


def sections(result: SssdResult) -> list[Section]:
    """Every table and figure in the order of the paper."""
    return [
        *(figure_2(result, batch) for batch in BATCHES), figure_2_timed(result), table_1(result.costs), budgets(result.costs),
        figure_3(result.costs), figure_4a(result), figure_4bc(result), section_4_2(result), figure_5(result),
    ]  # fmt: skip


def figure_2(result: SssdResult, batch: int) -> Section:
    """Accepted tokens, the cost of a step and their quotient."""
    found, costs = speeds(result, batch), result.costs
    top = {kind: best(found, kind) for kind in COSTS}
    rows = []
    for one in found:
        row = [str(one.size), text_of(one.tokens), text_of(one.published)]
        for kind, cost in COSTS.items():
            row += [text_of(cost(one)), f"{text_of(one.product(kind))}{'*' if one is top[kind] else ''}"]
        rows.append(tuple(row))
    measured = f"medians of {costs.rounds} forwards of {costs.label} behind {costs.contexts[0]} cached tokens" if costs else "-"
    notes = (
        f"{PER_STEP} cost: time of a forward over that with s_q = 1; product: tokens per step over cost, the speed to be"
        " expected; *: the best s_q. Drafting costs nothing here, as in the paper's figure.",
        f"Measured: {measured}; CPU time: the same in processor time, which other jobs disturb less. roofline: table 1 with this"
        " machine's peaks. 910B4: the same for the paper's device and Llama-2 7B, with the tokens per step measured here.",
        *([PICTURE] if batch == SPLIT_BATCH else []),
    )
    kinds = tuple(f"{what} {kind}" for kind in COSTS for what in ("cost", "product"))
    title = f"Figure 2: tokens per step and cost of a step, batch of {batch}"
    return Section(title, ("s_q", "tokens/ step", "paper's weights", *kinds), tuple(rows), notes)


def figure_2_timed(result: SssdResult) -> Section:
    """What is expected against what the clock says."""
    columns = ("speed-up", "CPU time", "S", "equal")
    expected = {batch: {one.size: one.product(MEASURED) for one in speeds(result, batch)} for batch in BATCHES}
    rows = []
    for size in TIMED:
        row = [str(size)]
        for batch in BATCHES:
            part = by_the_clock(result, batch)
            row += [text_of(expected[batch].get(size)), *cells(part, drafter(size, result.store), columns)]
        rows.append(tuple(row))
    notes = (
        f"expected: the product of figure 2. {SPEEDUP} Drafting is in it, and the prefill. {CPU_TIME}",
        "S: tokens per forward behind the prefill, whose first token does not count; so it differs from tokens per step.",
        *(part.equality() for part in result.timed[:1]),
    )
    headings = (f"{name}, b = {batch}" for batch in BATCHES for name in ("expected", *columns))
    return Section("Figure 2 by the clock: decoding with sssd", ("s_q", *headings), tuple(rows), notes)


def table_1(costs: CostStudy | None) -> Section:
    """FLOPs and memory traffic, analytic and for the model in use."""
    at = tuple(f"{what} s_q = {size}" for size in EVALUATED for what in ("MFLOP", "MB", "FLOPs:IO"))
    headings = ("operation", "shape", "times", "FLOPs", "read", "written", "FLOPs:IO approx.", *at)
    title = "Table 1: FLOPs and memory traffic of a forward"
    if costs is None:
        return Section(title, headings, ())
    shapes, context = costs.shapes, costs.contexts[0]
    evaluated = [[*shapes.products(SPLIT_BATCH, size), shapes.attention(SPLIT_BATCH, size, context)] for size in EVALUATED]
    kinds = [(f"{one.inputs} x {one.outputs}", _MATMUL) for one in shapes.matmuls]
    kinds.append((f"{shapes.heads} x {shapes.head_size}", _ATTENTION))
    rows = []
    for (shape, formulas), *works in zip(kinds, *evaluated, strict=True):
        row = [works[0].name, shape, str(works[0].count), *formulas]
        for work in works:
            row += [f"{work.flops / 1e6:.2f}", f"{(work.read + work.written) / 1e6:.3f}"]
            row.append(f"{work.intensity * shapes.width:.1f}")
        rows.append(tuple(row))
    notes = (
        "Formulas as in the paper, IO in numbers: b sequences, s_q tokens of each, s_kv of them cached, n x m weights; for"
        " attention n heads of size d (fewer of keys and values where they are shared). approx.: where n and m, or s_kv, are"
        " large.",
        f"Evaluated for one occurrence at b = {SPLIT_BATCH} and s_kv = {context}, {shapes.width} bytes a number. The paper's"
        " table has neither the third matrix of a gated MLP nor the LM head; they count here.",
    )
    return Section(title, headings, tuple(rows), notes)


def budgets(costs: CostStudy | None) -> Section:
    """Tokens of a forward that cost (almost) nothing."""

    def row(name: str, peak: Peak, hidden: int, width: int) -> tuple[str, ...]:
        budget = free_budget(hidden, peak, width)
        device = f"{peak.flops / 1e12:.4g}", f"{peak.bandwidth / 1e12:.3g}", f"{peak.ratio:.3g}", str(hidden)
        return name, *device, text_of(budget, ".1f"), text_of(budget and budget / SPLIT_BATCH, ".1f")

    rows = [
        row("910B4, Llama-2 7B, the paper's equation", ASCEND, LLAMA_2_7B.hidden, LLAMA_2_7B.width),
        ("the same, the paper's text", *["-"] * 4, str(PAPER_BUDGET), str(PAPER_BUDGET_SIZE)),
    ]
    if costs is not None:
        rows.append(row(f"here, {costs.label}", costs.peak, costs.shapes.hidden, costs.shapes.width))
    notes = (
        "Solved: 1 / (w (1/h + 1 / (2 b s_q))) = FLOP/s over bytes/s, w bytes a number; -: products of this width never become"
        " bound by arithmetic. The paper's own equation gives"
        f" {free_budget(LLAMA_2_7B.hidden, ASCEND):.0f} where its text says {PAPER_BUDGET}.",
        "here: FLOP/s of a large matrix product and bytes/s of a large sum, in the model's arithmetic. Weights that fit into a"
        " cache are read faster than that.",
    )
    headings = ("device and model", "TFLOP/s", "TB/s", "FLOPs per byte", "h", "b s_q", f"s_q at b = {SPLIT_BATCH}")
    return Section("Section 3.2.1: the free budget", headings, tuple(rows), notes)


def figure_3(costs: CostStudy | None) -> Section:
    """Matrix products and attention, measured and by the roofline."""
    rows = []
    for one in costs.split() if costs is not None else ():
        values = (one.seconds, one.matmuls, one.attention, one.rest, *one.roofline, sum(one.roofline))
        rows.append((f"{one.context}, {one.size}", *(text_of(value and 1e3 * value) for value in values)))
    notes = (
        f"Milliseconds of a forward at batch {SPLIT_BATCH}. products: all linear modules, the LM head too. attention: what"
        " attention modules do besides, positions and the cache among it. rest: norms, embedding, masks, Python. Parts are timed"
        " one by one in forwards of their own, which take longer; what is shown is their share of the time in front.",
        PICTURE,
    )
    kinds = ("products", "attention")
    headings = ("s_kv, s_q", "ms", *kinds, "rest", *(f"roofline: {kind}" for kind in kinds), "roofline: all")
    return Section("Figure 3: matrix products and attention", headings, tuple(rows), notes)
