"""The tables and the figure of the lookahead paper (Fu et al. 2024): its own numbers, and which
drafter stands for each row.
"""

from __future__ import annotations

from itertools import product

from paceline.bench.papers.lookahead.result import LookaheadResult
from paceline.bench.papers.lookahead.scaling_law import CompressionPoint, ScalingLaw, fit
from paceline.bench.papers.part import CONVENTION, PLAIN, SPEEDUP, TableLine, figures_of, line_table
from paceline.report.tables import Cell, Column, Table

NGRAMS = (3, 5, 7, 9)
WINDOWS = (1, 2, 4, 8, 15, 30)
SETTINGS = tuple(product(NGRAMS, WINDOWS))  # N and W = G of figure 4
PAPER_LAW = ScalingLaw(alpha=0.425, f=3.106)  # the caption of figure 4


def spec_of(
    ngram: int, window: int, guesses: int, prompt_pool: bool = False, published: bool = False
) -> str:
    """Return the drafter of a setting (N, W, G); `published`: with exactly the steps of the
    paper's public code.
    """
    prompt = str(prompt_pool).lower()
    spec = f"lookahead:window={window},ngram={ngram},guesses={guesses},prompt_pool={prompt}"
    return f"{spec},reference_mode=true" if published else spec


TABLE_3 = (  # LLaMA-2-7B-chat on MT-Bench, one A100, FlashAttention: speed-up, S
    TableLine("1 autoregressive", PLAIN, (1.00, 1.00)),
    TableLine("2 prompt lookup, 10 tokens", "prompt_lookup:max_draft_tokens=10", (1.44, 1.55)),
    TableLine("3 (10, 1, 3) + prompt", spec_of(10, 1, 3, True), (1.36, 1.45)),
    TableLine("4 (5, 1, 10) + prompt", spec_of(5, 1, 10, True), (1.36, 1.51)),
    TableLine("5 (5, 1, 30)", spec_of(5, 1, 30), (1.04, 1.12)),
    TableLine("6 (5, 1, 30) + prompt", spec_of(5, 1, 30, True), (1.46, 1.59)),
    TableLine("7 (5, 30, 1)", spec_of(5, 30, 1), (1.61, 1.79)),
    TableLine("8 (5, 15, 15)", spec_of(5, 15, 15), (1.78, 1.96)),
    TableLine("9 (5, 15, 15) + prompt", spec_of(5, 15, 15, True), (1.88, 2.05)),
)
DRAFT = "draft_model:max_draft_tokens=4"
TABLE_6 = (  # Vicuna-7B, one A100: speed-up on MT-Bench and on HumanEval
    TableLine("autoregressive", PLAIN, (1.0, 1.0)),
    TableLine("lookahead (5, 15, 15)", spec_of(5, 15, 15), (1.7, 2.1)),
    TableLine("lookahead, default here", "lookahead"),
    TableLine("Medusa", None, (2.3, 2.5)),
    TableLine("draft model, 4 tokens", DRAFT, (0.7, 0.8)),
    TableLine("Jacobi", "jacobi", (0.4, 0.7)),
    TableLine("Gauss-Seidel-Jacobi, block 5", "jacobi:block=5", (1.1, 1.1)),
    TableLine("Gauss-Seidel-Jacobi, block 16", "jacobi:block=16", (1.1, 1.1)),
)
_COLUMNS = ("speed-up", "S", "fed/ step", "equal")


def sections(result: LookaheadResult) -> list[Table]:
    """Return figure 4 twice, table 3, table 6."""
    return [
        figure_4(result, published=True),
        figure_4(result, published=False),
        table_3(result),
        table_6(result),
    ]


def points(result: LookaheadResult, published: bool) -> list[CompressionPoint]:
    """Return what was measured for figure 4, with the steps of the paper's public code or those
    of this implementation.
    """
    measured = (
        (
            ngram,
            window,
            figures_of(result.figure, spec_of(ngram, window, window, published=published)),
        )
        for ngram, window in SETTINGS
    )
    return [
        CompressionPoint(ngram, window, one.tokens_per_forward)
        for ngram, window, one in measured
        if one and one.tokens_per_forward
    ]


def figure_4(result: LookaheadResult, published: bool) -> Table:
    """Return S by N and W, with the value of the fitted law in brackets."""
    measured = points(result, published)
    law, known = (
        fit(measured),
        {(point.ngram, point.window): point.compression for point in measured},
    )

    def cell(ngram: int, window: int) -> Cell:
        found = known.get((ngram, window))
        return found if found is None or law is None else (found, law.compression(ngram, window))

    form = ".2f" if law is None else "{:.2f} ({:.2f})"
    steps = (
        "the steps of the paper's public code (reference_mode=true)"
        if published
        else "the steps of this implementation"
    )
    rows = [(f"N = {ngram}", *(cell(ngram, window) for window in WINDOWS)) for ngram in NGRAMS]
    notes = [_fit_note(measured, law)]
    if published and measured:
        notes.append(
            f"The paper's own fit, LLaMA-2-7B-chat on MT-Bench: alpha = {PAPER_LAW.alpha}, f ="
            f" {PAPER_LAW.f}; its curves are"
            f" {PAPER_LAW.residual(measured):.3f} RMS away from these points. The public code"
            " keeps at most N - 2 tokens of a"
            " guess, where the formula has N - 1."
        )
    elif not published:
        notes.append(
            "The formula knows neither accepted window tokens nor guesses continued from the pool,"
            " which are new here."
        )
        notes += [result.figure.equality()] if result.figure else []
    title = f"Figure 4: S against W = G, measured (fitted), with {steps}"
    return Table.of(
        title, ["", *(Column(f"W = {window}", form) for window in WINDOWS)], rows, notes
    )


def _fit_note(measured: list[CompressionPoint], law: ScalingLaw | None) -> str:
    if law is None:
        return "No fit of equations 5 to 7: nothing, or nothing above S = 1, was measured."
    values = [point.compression for point in measured]
    return (
        f"Fit of equations 5 to 7, S = (f - 1 + E) / f: alpha = {law.alpha:.3f}, f = {law.f:.3f};"
        " residual RMS"
        f" {law.residual(measured):.3f} over {len(measured)} points from {min(values):.2f} to"
        f" {max(values):.2f}."
        " The prompt is not in the n-gram pool, as in the paper."
    )


def table_3(result: LookaheadResult) -> Table:
    """Return the two branches, with and without the prompt in the pool."""
    notes = (
        "The paper's columns: LLaMA-2-7B-chat, MT-Bench, A100, FlashAttention; its S (equation 6)"
        " is generated tokens over"
        " decoding steps.",
        SPEEDUP,
        *((result.tables.equality(),) if result.tables else ()),
    )
    title, paper = (
        "Table 3: lookahead and verification branch, (N, W, G)",
        ("paper's speed-up", "paper's S"),
    )
    return line_table(title, ("setting", *_COLUMNS), paper, result.tables, TABLE_3, notes)


def table_6(result: LookaheadResult) -> Table:
    """Return lookahead among other methods."""
    drafted = figures_of(result.tables, DRAFT) is not None
    notes = (
        "The paper's columns: speed-ups of Vicuna-7B on an A100, draft model TinyLlama-1B.",
        "Medusa needs trained heads; it is not part of paceline.",
        *(() if drafted else ("The draft model's row is empty: none was given (--draft-model).",)),
        CONVENTION,
    )
    paper = ("paper's MT-Bench", "paper's HumanEval")
    return line_table(
        "Table 6: other methods", ("method", *_COLUMNS), paper, result.tables, TABLE_6, notes, ".1f"
    )
