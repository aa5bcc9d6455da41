"""The tables and figures of the SpecDec++ paper (Huang et al. 2024), measured and its own."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from paceline.bench.papers.part import CPU_TIME, PLAIN, SPEEDUP, cells, columns
from paceline.bench.papers.specdec_pp import picks
from paceline.bench.papers.specdec_pp.costs import cheapest, pareto_front
from paceline.bench.papers.specdec_pp.heads import EPOCHS, GRID
from paceline.bench.papers.specdec_pp.picks import ALL, PAPER_RATIO, Choice, Pick
from paceline.bench.papers.specdec_pp.result import (
    DRAFT_ALONE,
    IN_BOTH,
    IN_FIXED,
    IN_HEAD,
    TARGET_ALONE,
    RulePoint,
    SettingTimes,
    SpecDecResult,
)
from paceline.bench.papers.specdec_pp.rules import (
    ORACLE,
    PAPER_THRESHOLDS,
    families,
    methods_of,
    rivals,
)
from paceline.drafters.specdec_pp.card import latency
from paceline.report.tables import Cell, Column, Table

PLAINLY, FIXED_BEST, HEAD_BEST = "plain decoding", "best fixed K", "best threshold"
SECTION_2_1: dict[str, tuple[float | None, float]] = {  # N_target / N and tokens/s; Alpaca
    PLAINLY: (1.0, 9.26),
    FIXED_BEST: (None, 17.58),
    ORACLE: (0.164, 27.06),
}
TABLE_1 = (  # tokens/s; version 1 of the paper has the labels of its two rows swapped
    Pick("Alpaca", 9.26, Choice("-", 17.62), Choice("-", 18.88)),
    Pick("HumanEval", 9.26, Choice("-", 18.55), Choice("-", 20.61)),
    Pick("GSM8K", 9.26, Choice("-", 19.14), Choice("-", 20.95)),
)
TABLE_2: dict[
    str, tuple[float | None, float | None]
] = {  # t_draft, t_target in seconds: section 4.2, means over its data sets
    IN_FIXED: (None, None),
    IN_HEAD: (None, None),
    IN_BOTH: (0.0234, 0.112),
    TARGET_ALONE: (None, 0.108),
    DRAFT_ALONE: (0.0207, None),
}
_MOST_SETS = 4  # that a table has columns for


def sections(result: SpecDecResult) -> list[Table]:
    """Return every table and figure in the order of the paper."""
    return [
        section_2_1(result),
        table_2(result),
        figure_4(result),
        figure_4_fronts(result),
        table_1_expected(result),
        table_1_measured(result),
        heads_table(result),
    ]


def section_2_1(result: SpecDecResult) -> Table:
    """Return what drafts of the right length would give: plain decoding, the best settings by
    the clock, and the oracle.
    """
    part, named = result.timed_part, methods_of(result.config.head)
    best = [
        picks.fastest(part, methods) if part else None for methods in rivals(result.config.head)
    ]
    rows = []
    for name, method in {
        PLAINLY: PLAIN,
        FIXED_BEST: best[0],
        HEAD_BEST: best[1],
        ORACLE: ORACLE,
    }.items():
        point = RulePoint.of(part, method) if part else None
        expected = 1 / latency(*result.pair_times, point) if point and result.pair_times else None
        theirs, speed = SECTION_2_1.get(name, (None, None))
        over_plain = speed and speed / SECTION_2_1[PLAINLY][1]
        rows.append(
            (
                f"{name}, {named[method]}" if method in named else name,
                *cells(part, method, ("N_target/N", "N_disc/N")),
                expected,
                *cells(part, method, ("tokens/s", "speed-up")),
                theirs,
                speed,
                over_plain,
            )
        )
    notes = (
        "The oracle drafts up to the next token on which the models differ (lemma 2.1), so it"
        " discards nothing. The paper's"
        " figures are those of Alpaca.",
        f"by Eq. 2.3: tokens/s from the two rates, with the times of table 2. {SPEEDUP}",
        *((part.equality(),) if part else ()),
    )
    shown = [
        "",
        *columns(("N_target/N", "N_disc/N")),
        Column("by Eq. 2.3", ".1f"),
        *columns(("tokens/s", "speed-up")),
        Column("paper's N_target/N", ".3f"),
        "paper's tokens/s",
        "paper's speed-up",
    ]
    return Table.of("Section 2.1: the oracle", shown, rows, notes)


def table_2(result: SpecDecResult) -> Table:
    """Return the time of a forward, by regression."""
    measured = {one.setting: one for one in result.times}
    rows = []
    for name, theirs in TABLE_2.items():
        one = measured.get(name, SettingTimes(name, None, None))
        own: list[Cell] = []
        for fit in (one.wall, one.processor):
            own += (
                [_milliseconds(fit.draft), _milliseconds(fit.target), fit.r_squared]
                if fit
                else [None] * 3
            )
        rows.append(
            (name, *own, one.wall.answers if one.wall else None, *map(_milliseconds, theirs))
        )
    notes = [
        "Milliseconds per forward: T = t_draft N_draft + t_target N_target (Eq. 2.1) by least"
        " squares over the answers, the"
        " forwards over the prompts included. R2: share of the variance of T that the fit"
        " explains. cpu: in processor time.",
        "The paper's: Llama-2 7B and 70B on two A100, means over its data sets; all its R2 are at"
        " least 0.98.",
    ]
    if result.pair_times is not None:
        draft, target = result.pair_times
        notes.append(
            f"Used for Eq. 2.3, fitted to both together: {1e3 * draft:.2f} and {1e3 * target:.2f}"
            " ms, a ratio of"
            f" {target / draft:.1f}; the paper's ratio: {PAPER_RATIO:.1f}."
        )
    shown = [
        "ms per forward",
        "t_draft",
        "t_target",
        Column("R2", ".3f"),
        "cpu t_draft",
        "cpu t_target",
        Column("cpu R2", ".3f"),
        Column("answers"),
        Column("paper's t_draft", ".1f"),
        Column("paper's t_target", ".1f"),
    ]
    return Table.of("Table 2, figure 3: forward times", shown, rows, notes)


def figure_4(result: SpecDecResult) -> Table:
    """Return verification rate and discard rate of every rule."""
    counts, headings = result.counts, ("S", "draft/ token")
    shown = (None, *(counts.sets if len(counts.sets) <= _MOST_SETS else ()))
    rows: list[tuple[Cell, ...]] = []
    for methods in [*families(result.config.head).values(), {ORACLE: ORACLE}]:
        rates: list[dict[str, Cell]] = []
        for points in (counts.points(methods.values(), name) for name in shown):
            best = {one.method for one in pareto_front(points) if one.method != ORACLE}
            rates.append(
                {
                    one.method: (
                        one.discard_rate,
                        one.verification_rate,
                        "*" * (one.method in best),
                    )
                    for one in points
                }
            )
        for text, method in methods.items():
            if method != ORACLE or all(rates):
                rows.append(
                    (
                        text,
                        *(one.get(method) for one in rates),
                        *cells(counts.part, method, headings),
                    )
                )
    plain = counts.part.method(PLAIN)
    notes = (
        "Each cell: N_disc/N, drafted tokens that were not kept, and N_target/N, target forwards"
        " (those over the prompt"
        " included), per new token. *: on the Pareto front of its own kind of rule. product,"
        " confidence and entropy stop below"
        " the bound named (`paceline drafters`); like the head they draft at most 20 tokens.",
        "count_undecided=false: the rule as published, which does not judge the newest token"
        " (option of specdec_pp).",
        f"Of {plain.answers if plain else 0} prompts the first head was trained or calibrated on"
        f" {result.seen}.",
        "The paper shows its points as a picture only: no numbers stand beside these.",
        counts.part.equality(),
    )
    pairs = [Column(name or ALL, "{:.3f}, {:.3f}{}") for name in shown]
    return Table.of(
        "Figure 4: N_disc/N, N_target/N", ["rule", *pairs, *columns(headings)], rows, notes
    )


def figure_4_fronts(result: SpecDecResult) -> Table:
    """Return the head's front held against the others."""
    counted = [
        Column(heading)
        for heading in ("rival, prompts", "on its front", "in reach", "head below", "head above")
    ]
    rows = [
        (f"{one.rival}, {one.name}", *dataclasses.astuple(one)[2:])
        for one in picks.fronts(result.counts, result.config.head)
    ]
    notes = (
        "in reach: points of the rival's front at whose discard rate the head's front, joined by"
        " straight lines, exists; below,"
        " above: where the head needs fewer target forwards, or more.",
        "forwards: head over rival at equal discards; discards: the same at equal forwards; means."
        " latency gain: the rival's"
        f" least latency over the head's by Eq. 2.3, for a target forward of {PAPER_RATIO:.1f}"
        " draft forwards as the paper's.",
    )
    shown = [*counted, "forwards", "discards", "latency gain"]
    return Table.of("Figure 4: the head's Pareto front against others", shown, rows, notes)


def table_1_expected(result: SpecDecResult) -> Table:
    """Return best against best as the paper has it, by equation 2.3; its own rows alone until
    times are known.
    """
    found = []
    if result.pair_times is not None:
        alone = next((one.wall for one in result.times if one.setting == TARGET_ALONE), None)
        found = picks.expected_picks(
            result.counts, result.config.head, *result.pair_times, alone.target if alone else None
        )
    notes = (
        "As the paper does: rates of figure 4, tokens/s by Eq. 2.3 with the times of table 2, each"
        " best over K 2 to 14 and the"
        " thresholds 0.1 to 0.9.",
        "The paper's rows: Llama-2-chat 7B and 70B; its version 1 has the labels of the two rows"
        " of its table swapped.",
    )
    return _table_1("Table 1: best against best, by equation 2.3", found, notes)


def table_1_measured(result: SpecDecResult) -> Table:
    """Return best against best by the clock."""
    found = picks.measured_picks(result.timed, result.config.head) if result.timed else []
    notes = (
        f"tokens/s by the clock, the best of each kind chosen by it. {SPEEDUP}",
        f"gain: over the best fixed K. {CPU_TIME}",
        *(
            ()
            if any(pick.auto for pick in found)
            else ("threshold=auto needs a head whose card has a curve.",)
        ),
    )
    return _table_1("Table 1: best against best, by the clock", found, notes)


def heads_table(result: SpecDecResult) -> Table:
    """Return heads beside one another, the ablation of appendix C.3."""
    rows = []
    for sweep, heads in ((result.counts, result.heads), (result.grid, result.grid_heads)):
        for head in heads if sweep else ():
            point = (
                cheapest(sweep.points(head.methods.values()), 1.0, PAPER_RATIO) if sweep else None
            )
            own = (
                head.label,
                head.depth,
                head.reject_weight,
                head.calibration_error,
                head.roc_area,
            )
            found: tuple[Cell, ...] = (None,) * 4
            if point is not None:
                threshold = next(
                    text for text, method in head.methods.items() if method == point.method
                )
                found = (
                    threshold,
                    point.discard_rate,
                    point.verification_rate,
                    latency(1.0, PAPER_RATIO, point),
                )
            rows.append((*own, *found))
    notes = [
        "ECE: expected calibration error over 15 bins, after calibration; ROC: area under the"
        " curve; both on prompts held out of"
        " training. best h: of least latency (Eq. 2.3, in draft forwards per new token, target"
        " forward"
        f" {PAPER_RATIO:.1f} draft forwards)."
    ]
    if result.grid is None:
        notes.append(
            "For the ablation over w_rej and D: record (`paceline head record`), then --paper"
            " specdec_pp --recording FOLDER,"
            " which trains a head for each; heads of your own are compared with --head FOLDER,"
            " repeated."
        )
    else:
        notes.append(
            f"{len(result.grid_heads)} of {GRID} heads of w_rej 1, 3, 6, 12 and D 0 to 4 were"
            f" trained in the time, {EPOCHS}"
            " epochs each, on the hidden state alone as in the paper; thresholds"
            f" {', '.join(map(str, PAPER_THRESHOLDS))};"
            f" {result.grid.part.figures[0].answers} prompts."
        )
    notes.append(
        "The paper: w_rej 6, D 3, h 0.7 gives 99.3 % of the best tokens/s or more on each of its"
        " data sets."
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
    return Table.of("Appendix C.3: heads", shown, rows, notes, ".3f")


def _table_1(title: str, found: Sequence[Pick], notes: Sequence[str]) -> Table:
    rows = []
    for pick in [*found, *TABLE_1]:
        name = f"paper: {pick.name}" if pick in TABLE_1 else pick.name
        best = [
            cell
            for one in (pick.fixed, pick.head)
            for cell in (one and one.label, one and one.rate, pick.speedup(one))
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
    return Table.of(title, ["prompts", Column("plain", ".1f"), *kinds, *gains], rows, notes)


def _milliseconds(seconds: float | None) -> float | None:
    return seconds and 1e3 * seconds
