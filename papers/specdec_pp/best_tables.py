"""Build the SpecDec++ paper's tables of the best settings and of the heads."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.drafters.specdec_pp.card import latency
from paceline.report.tables import Cell, Column, Table
from papers.part import SPEEDUP, columns
from papers.specdec_pp import picks
from papers.specdec_pp.costs import cheapest
from papers.specdec_pp.paper_settings import (
    TABLE_1,
)
from papers.specdec_pp.picks import PAPER_RATIO, Pick
from papers.specdec_pp.result import (
    TARGET_ALONE,
    HeadRow,
    RulePoint,
    SpecDecResult,
)
from papers.specdec_pp.run_settings import (
    EPOCHS,
    GRID,
    PAPER_THRESHOLDS,
)


def table_1_expected(result: SpecDecResult) -> Table:
    """Return table 1 by equation 2.3; without measured times, only published rows."""
    expected = []
    if result.pair_times is not None:
        alone = next((row.wall for row in result.times if row.setting == TARGET_ALONE), None)
        expected = picks.expected_picks(
            result.counts, result.config.head, *result.pair_times, alone.target if alone else None
        )
    notes = (
        "As in the paper, Eq. 2.3 computes tokens/s from the rates in figure 4 and the times in"
        " table 2. Each value is the best over K from 2 to 14, or over the thresholds from 0.1 to"
        " 0.9.",
        "The paper's rows are for Llama-2-chat 7B and 70B. In version 1 of the paper, the labels of"
        " the two rows are swapped.",
    )
    return _table_1("by equation 2.3", expected, notes)


def table_1_measured(result: SpecDecResult) -> Table:
    """Return table 1 with measured speeds."""
    measured = picks.measured_picks(result.timed, result.config.head) if result.timed else []
    notes = (
        "Each row compares the fastest setting of SpecDec with the fastest setting of SpecDec++,"
        f" by measured tokens/s. {SPEEDUP}",
        "gain: tokens/s relative to the best fixed K. The CPU gain is the same ratio, computed"
        " from processor time. Other jobs on the machine affect processor time less than elapsed"
        " time.",
        *(
            ()
            if any(pick.auto for pick in measured)
            else ("threshold=auto needs a head whose card has a curve.",)
        ),
    )
    return _table_1("measured", measured, notes)


def heads_table(result: SpecDecResult) -> Table:
    """Return the comparison of heads (appendix C.3)."""
    rows = []
    for sweep, heads in ((result.counts, result.heads), (result.grid, result.grid_heads)):
        for head in heads if sweep else ():
            point = (
                cheapest(sweep.points(head.methods.values()), 1.0, PAPER_RATIO) if sweep else None
            )
            rows.append(_head_row(head, point))
    notes = [
        "ECE: expected calibration error over 15 bins, after calibration; ROC: area under the"
        " curve; both on prompts held out of training. best h: threshold with the lowest latency"
        " (Eq. 2.3, in draft forward passes per new token; one target forward pass costs"
        f" {PAPER_RATIO:.1f} draft forward passes)."
    ]
    if result.grid is None:
        notes.append(
            "For the ablation over w_rej and D, record data with `paceline head record`. Then run"
            " this command with --recording FOLDER, which trains a head for each pair of values. To"
            " compare further heads, repeat --head FOLDER."
        )
    else:
        notes.append(
            f"{len(result.grid_heads)} of {GRID} heads with w_rej 1, 3, 6, 12 and D 0 to 4 were"
            f" trained within the time limit, for {EPOCHS} epochs each. As in the paper, their only"
            f" input is the hidden state. Thresholds: {', '.join(map(str, PAPER_THRESHOLDS))}."
            f" Prompts: {result.grid.part.figures[0].answers}."
        )
    notes.append(
        "In the paper, w_rej 6, D 3, h 0.7 reaches at least 99.3 % of the best tokens/s on each"
        " data set."
    )
    shown = [
        "head",
        Column("D"),
        Column("w_rej", "g"),
        "ECE",
        "ROC",
        "best h",
        "N_disc/N",
        "N_target/N",
        Column("latency", ".2f"),
    ]
    title = "Appendix C.3: Each row shows the settings and the accuracy of an acceptance head"
    return Table.of(title, shown, rows, notes, ".3f")


def _head_row(head: HeadRow, point: RulePoint | None) -> tuple[Cell, ...]:
    """Return the table row of a head, with its best threshold if `point` is given."""
    card = (head.label, head.depth, head.reject_weight, head.calibration_error, head.roc_area)
    if point is None:
        return (*card, *(None,) * 4)
    threshold = next(text for text, method in head.methods.items() if method == point.method)
    rates = point.discard_rate, point.verification_rate
    return (*card, threshold, *rates, latency(1.0, PAPER_RATIO, point))


def _table_1(source: str, measured: Sequence[Pick], notes: Sequence[str]) -> Table:
    rows = []
    for pick in [*measured, *TABLE_1]:
        name = f"paper: {pick.name}" if pick in TABLE_1 else pick.name
        best = [
            cell
            for choice in (pick.fixed, pick.head)
            for cell in (choice and choice.label, choice and choice.rate, pick.speedup(choice))
        ]
        auto = pick.auto.rate if pick.auto else None
        rows.append(
            (
                name,
                pick.plain,
                *best,
                pick.gain(pick.head),
                pick.cpu_gain,
                auto,
                pick.gain(pick.auto),
            )
        )
    gains = [
        Column(heading, ".1f" if heading == "auto" else ".3f")
        for heading in ("gain", "CPU gain", "auto", "auto gain")
    ]
    kinds = [
        column
        for kind in ("SpecDec", "SpecDec++")
        for column in (Column(kind), *columns(("tokens/s", "speed-up")))
    ]
    title = (
        f"Table 1, {source}: Each row compares the speeds with the best fixed draft length K"
        " (SpecDec) and with the best threshold h (SpecDec++)"
    )
    return Table.of(title, ["prompts", Column("plain", ".1f"), *kinds, *gains], rows, notes)
