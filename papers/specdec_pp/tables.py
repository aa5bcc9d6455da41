"""Build the tables and figures of the SpecDec++ paper (Huang et al. 2024)."""

from __future__ import annotations

import dataclasses

from paceline.drafters.specdec_pp.card import latency
from paceline.report.tables import Cell, Column, Table
from papers.part import PICTURE, PLAIN, SPEEDUP, cells, columns
from papers.specdec_pp import picks
from papers.specdec_pp.best_tables import heads_table, table_1_expected, table_1_measured
from papers.specdec_pp.costs import pareto_front
from papers.specdec_pp.paper_settings import (
    FIXED_BEST,
    HEAD_BEST,
    PLAINLY,
    SECTION_2_1,
    TABLE_2,
)
from papers.specdec_pp.picks import ALL, PAPER_RATIO
from papers.specdec_pp.plot_settings import MAX_TABLE_SETS
from papers.specdec_pp.result import (
    RulePoint,
    SettingTimes,
    SpecDecResult,
)
from papers.specdec_pp.rules import ORACLE, families, methods_of, rivals


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
    """Return section 2.1: plain decoding, the fastest settings, and the oracle."""
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
        published_rate, speed = SECTION_2_1.get(name, (None, None))
        over_plain = speed and speed / SECTION_2_1[PLAINLY][1]
        rows.append(
            (
                f"{name}, {named[method]}" if method in named else name,
                *cells(part, method, ("N_target/N", "N_disc/N")),
                expected,
                *cells(part, method, ("tokens/s", "speed-up")),
                published_rate,
                speed,
                over_plain,
            )
        )
    notes = (
        "The oracle drafts up to the next token on which the models differ (lemma 2.1), so it"
        " discards no tokens. The paper's figures are for Alpaca.",
        "by Eq. 2.3: tokens/s calculated with equation 2.3 of the paper, from N_target/N, N_disc/N"
        f" and the times in table 2. {SPEEDUP}",
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
    title = (
        "Section 2.1: The oracle is compared with the best fixed draft length K and the best"
        " threshold h"
    )
    return Table.of(title, shown, rows, notes)


def table_2(result: SpecDecResult) -> Table:
    """Return table 2: durations of forward passes, estimated by regression."""
    measured = {setting.setting: setting for setting in result.times}
    rows = []
    for name, published in TABLE_2.items():
        setting = measured.get(name, SettingTimes(name, None, None))
        cells: list[Cell] = []
        for fit in (setting.wall, setting.processor):
            cells += (
                [_milliseconds(fit.draft), _milliseconds(fit.target), fit.r_squared]
                if fit
                else [None] * 3
            )
        rows.append(
            (
                name,
                *cells,
                setting.wall.answers if setting.wall else None,
                *map(_milliseconds, published),
            )
        )
    notes = [
        "The columns t_draft and t_target show milliseconds per forward pass, from a least-squares"
        " fit of T = t_draft N_draft + t_target N_target (Eq. 2.1) to the time T of each answer."
        " The fit includes the forward passes over the prompts. R2: share of the variance in answer"
        " times explained by the fit. cpu: the same fit, but to processor time instead of elapsed"
        " time.",
        "The paper's columns show means over the paper's data sets. The authors measured Llama-2"
        " 7B and 70B on two A100 GPUs. All R2 values in the paper are at least 0.98.",
    ]
    if result.pair_times is not None:
        draft, target = result.pair_times
        notes.append(
            'The speeds by Eq. 2.3 are calculated with the times in the row "both together":'
            f" {1e3 * draft:.2f} ms for a draft forward pass and {1e3 * target:.2f} ms for a target"
            " forward pass."
            f" A target forward pass takes {target / draft:.1f} times as long as a draft forward"
            f" pass. In the paper, it takes {PAPER_RATIO:.1f} times as long."
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
    title = (
        "Table 2, figure 3: Each row shows the fitted time of a draft forward pass (t_draft) and of"
        " a target forward pass (t_target)"
    )
    return Table.of(title, shown, rows, notes)


def figure_4(result: SpecDecResult) -> Table:
    """Return figure 4: verification and discard rates of every rule."""
    counts, headings = result.counts, ("S", "draft/ token")
    shown = (None, *(counts.sets if len(counts.sets) <= MAX_TABLE_SETS else ()))
    rows: list[tuple[Cell, ...]] = []
    for methods in [*families(result.config.head).values(), {ORACLE: ORACLE}]:
        rates: list[dict[str, Cell]] = []
        for points in (counts.points(methods.values(), name) for name in shown):
            best = {point.method for point in pareto_front(points) if point.method != ORACLE}
            rates.append(
                {
                    point.method: (
                        point.discard_rate,
                        point.verification_rate,
                        "*" * (point.method in best),
                    )
                    for point in points
                }
            )
        for text, method in methods.items():
            if method != ORACLE or all(rates):
                rows.append(
                    (
                        text,
                        *(point.get(method) for point in rates),
                        *cells(counts.part, method, headings),
                    )
                )
    plain = counts.part.method(PLAIN)
    notes = (
        "Each cell contains the number of rejected draft tokens (N_disc/N) and of target forward"
        " passes (N_target/N, including prefill), both per new token. *: on the Pareto front of"
        " this kind of rule. With product, confidence and entropy, drafting stops when the value"
        " falls below the bound in the label. Like the head, these rules draft at most 20 tokens.",
        "count_undecided=false is the published rule, which ignores the newest token (option of"
        " specdec_pp).",
        f"The first head was trained or calibrated on {result.seen} of the"
        f" {plain.answers if plain else 0} prompts.",
        PICTURE,
        counts.part.equality(),
    )
    pairs = [Column(name or ALL, "{:.3f}, {:.3f}{}") for name in shown]
    return Table.of(
        "Figure 4: Each cell shows N_disc/N and N_target/N",
        ["rule", *pairs, *columns(headings)],
        rows,
        notes,
    )


def figure_4_fronts(result: SpecDecResult) -> Table:
    """Return a comparison of the head's Pareto front with those of the other rules."""
    counted = [
        Column(heading)
        for heading in (
            "other rule, prompts",
            "its best settings",
            "compared",
            "head needs fewer",
            "head needs more",
        )
    ]
    rows = [
        (f"{comparison.rival}, {comparison.name}", *dataclasses.astuple(comparison)[2:])
        for comparison in picks.fronts(result.counts, result.config.head)
    ]
    notes = (
        "Each row compares the acceptance head with another rule for the draft length. A rule's"
        " Pareto front consists of its best settings: no other setting has both fewer target"
        " forward passes and fewer discarded tokens. Values between the points of the head's front"
        " are interpolated linearly. its best settings: number of the other rule's settings that"
        " are on that rule's Pareto front. compared: how many of these settings have a discard rate"
        " within the range of the head's front. head needs fewer: number of compared settings for"
        " which the head needs fewer target forward passes than the other rule at the same discard"
        " rate. head needs more: number of compared settings for which the head needs more target"
        " forward passes than the other rule.",
        "forwards: number of target forward passes with the head, divided by the number with the"
        " other rule at the same discard rate. The value is the mean over the compared settings."
        " discards: number of discarded tokens with the head, divided by the number with the other"
        " rule for the same number of target forward passes. The value is the mean over the"
        " best settings for which the head's front covers this number of forward passes."
        " latency gain: the lowest latency with the other rule, divided by the lowest latency with"
        " the head. The latencies are calculated with the paper's equation 2.3 and the paper's"
        " ratio of times: a target forward pass takes as long as"
        f" {PAPER_RATIO:.1f} draft forward passes.",
    )
    shown = [*counted, "forwards", "discards", "latency gain"]
    return Table.of(
        "Figure 4: The head's Pareto front is compared with those of other rules",
        shown,
        rows,
        notes,
    )


def _milliseconds(seconds: float | None) -> float | None:
    return seconds and 1e3 * seconds
