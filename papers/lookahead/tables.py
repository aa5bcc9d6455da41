"""Build the tables and the figure of the lookahead paper (Fu et al. 2024)."""

from __future__ import annotations

from paceline.report.tables import Cell, Column, Table
from papers.lookahead.paper_settings import (
    DRAFT,
    PAPER_LAW,
    TABLE_3,
    TABLE_6,
    spec_of,
)
from papers.lookahead.result import LookaheadResult
from papers.lookahead.scaling_law import CompressionPoint, ScalingLaw, fit
from papers.part import CONVENTION, SPEEDUP, TableLayout, figures_of, line_table

_COLUMNS = ("speed-up", "S", "fed/ step", "equal")


def sections(result: LookaheadResult) -> list[Table]:
    """Return figure 4 for the published and the default drafter, then tables 3 and 6."""
    return [
        figure_4(result, published=True),
        figure_4(result, published=False),
        table_3(result),
        table_6(result),
    ]


def points(result: LookaheadResult, published: bool) -> list[CompressionPoint]:
    """Return the measured points of figure 4.

    Args:
        result: Results for the paper.
        published: Whether to return the points of the drafter that works like the paper's public
            code. Otherwise, the default drafter's points are returned.
    """
    measured = (
        (
            ngram,
            window,
            figures_of(result.figure, spec_of(ngram, window, window, published=published)),
        )
        for ngram, window in result.config.settings
    )
    return [
        CompressionPoint(ngram, window, figures.tokens_per_forward)
        for ngram, window, figures in measured
        if figures and figures.tokens_per_forward
    ]


def figure_4(result: LookaheadResult, published: bool) -> Table:
    """Return the tokens per step, S, by N and W, with the fitted value in parentheses."""
    measured = points(result, published)
    law, known = (
        fit(measured),
        {(point.ngram, point.window): point.compression for point in measured},
    )

    def cell(ngram: int, window: int) -> Cell:
        compression = known.get((ngram, window))
        return (
            compression
            if compression is None or law is None
            else (compression, law.compression(ngram, window))
        )

    form = ".2f" if law is None else "{:.2f} ({:.2f})"
    mode, steps = (
        ("true", "the steps in the paper's public code")
        if published
        else ("false", "paceline's own steps, the default")
    )
    ngrams, windows = result.config.ngrams, result.config.windows
    rows = [(f"N = {ngram}", *(cell(ngram, window) for window in windows)) for ngram in ngrams]
    notes = [
        f"The drafter follows {steps}. The maximum number of guesses per step, G, equals the window"
        " width, W.",
        _fit_note(measured, law),
    ]
    if published and measured:
        notes.append(
            f"For LLaMA-2-7B-chat on MT-Bench, the paper's own fit yields alpha ="
            f" {PAPER_LAW.alpha} and f = {PAPER_LAW.f}. With the paper's values of alpha and f, the"
            f" root-mean-square error of S over the measured points is"
            f" {PAPER_LAW.residual(measured):.3f}. The public code keeps at"
            " most N - 2 tokens of a guess, whereas the formula assumes N - 1."
        )
    elif not published:
        notes.append(
            "This implementation also accepts window tokens, and extends guesses with n-grams from"
            " the pool. The scaling law accounts for neither."
        )
        notes += [result.figure.equality()] if result.figure else []
    title = (
        f"Figure 4, reference_mode={mode}: Each cell shows the measured step compression S and, in"
        " parentheses, the fitted S, for n-grams of N tokens and a window of width W"
    )
    return Table.of(
        title, ["", *(Column(f"W = {window}", form) for window in windows)], rows, notes
    )


def _fit_note(measured: list[CompressionPoint], law: ScalingLaw | None) -> str:
    if law is None:
        return "No fit of equations 5 to 7: nothing, or nothing above S = 1, was measured."
    values = [point.compression for point in measured]
    return (
        "The scaling law (equations 5 to 7) is S = (f - 1 + E) / f, where E is the expected number"
        " of tokens in a step with good guesses. The fit to the measured points yields the"
        f" acceptance rate alpha = {law.alpha:.3f} and the constant f = {law.f:.3f}: on average,"
        " one in every f steps has good guesses."
        f" The root-mean-square error of the step compression S is {law.residual(measured):.3f}"
        f" over {len(measured)} points with S from {min(values):.2f} to {max(values):.2f}. As in"
        " the paper, the prompt is not in the n-gram pool."
    )


def table_3(result: LookaheadResult) -> Table:
    """Return table 3: several settings (N, W, G), with or without the prompt pool."""
    notes = (
        "The paper's columns were measured with LLaMA-2-7B-chat on MT-Bench, on an A100 with"
        " FlashAttention. The paper's S (equation 6) is the number of generated tokens divided by"
        " the number of decoding steps.",
        SPEEDUP,
        *((result.tables.equality(),) if result.tables else ()),
    )
    layout = TableLayout(
        "Table 3: Each row shows the speed with one setting; (N, W, G) means n-grams of N tokens, a"
        " window of width W and at most G guesses",
        ("setting", *_COLUMNS),
        ("paper's speed-up", "paper's S"),
        TABLE_3,
    )
    return line_table(layout, result.tables, notes)


def table_6(result: LookaheadResult) -> Table:
    """Return table 6: lookahead decoding compared with other methods."""
    drafted = figures_of(result.tables, DRAFT) is not None
    notes = (
        "The paper's columns show speed-ups for Vicuna-7B on an A100, with TinyLlama-1B as the"
        " draft model.",
        "Medusa needs trained heads and is not part of paceline.",
        *(
            ()
            if drafted
            else ("The draft model's row is empty because --draft-model was not set.",)
        ),
        CONVENTION,
    )
    paper = ("paper's MT-Bench", "paper's HumanEval")
    title = "Table 6: Each row shows the speed of lookahead decoding or of another method"
    layout = TableLayout(title, ("method", *_COLUMNS), paper, TABLE_6, ".1f")
    return line_table(layout, result.tables, notes)
