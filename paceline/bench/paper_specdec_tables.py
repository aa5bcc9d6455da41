"""The tables and figures of the SpecDec++ paper (Huang et al. 2024), measured and its own."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import TYPE_CHECKING

from paceline.acceptance_card import latency
from paceline.bench.paper import HEADED, Section
from paceline.bench.paper_lines import CPU_TIME, PLAIN, SPEEDUP, cells, text_of
from paceline.bench.specdec_costs import cheapest, pareto_front
from paceline.bench.specdec_heads import EPOCHS, GRID
from paceline.bench.specdec_picks import (
    ALL,
    PAPER_RATIO,
    Choice,
    Pick,
    expected_picks,
    fastest,
    fronts,
    labels,
    measured_picks,
    rivals,
)
from paceline.bench.specdec_sweep import ORACLE, PAPER_THRESHOLDS, families, point_of

if TYPE_CHECKING:
    from paceline.bench.paper_specdec import SpecDecResult
    from paceline.bench.specdec_costs import ForwardTimes

IN_FIXED, IN_HEAD, IN_BOTH = "SpecDec, fixed K", "SpecDec++", "both together"
TARGET_ALONE, DRAFT_ALONE = "target alone", "draft alone"
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
TABLE_2: dict[str, tuple[float | None, float | None]] = {  # t_draft, t_target in seconds: section 4.2, means over its data sets
    IN_FIXED: (None, None),
    IN_HEAD: (None, None),
    IN_BOTH: (0.0234, 0.112),
    TARGET_ALONE: (None, 0.108),
    DRAFT_ALONE: (0.0207, None),
}
_MOST_SETS = 4  # that a table has columns for


def sections(result: SpecDecResult) -> list[Section]:
    """Every table and figure."""
    return [
        section_2_1(result), table_2(result), figure_4(result), figure_4_fronts(result), table_1_expected(result),
        table_1_measured(result), heads_table(result),
    ]  # fmt: skip


def milestones(result: SpecDecResult) -> dict[str, str | None]:
    """The methods of section 2.1: plain decoding, the best settings by the clock, and the oracle."""
    part = result.timed_part
    best = [fastest(part, methods) if part else None for methods in rivals(result.config.head)]
    return {PLAINLY: PLAIN, FIXED_BEST: best[0], HEAD_BEST: best[1], ORACLE: ORACLE}


def expected_rate(result: SpecDecResult, method: str | None) -> float | None:
    """Tokens per second of a timed method by equation 2.3, with the times that were fitted."""
    point = point_of(result.timed.part, method) if result.timed and method else None
    return 1 / latency(*result.pair_times, point) if point and result.pair_times else None


def section_2_1(result: SpecDecResult) -> Section:
    """What drafts of the right length would give."""
    part = result.timed_part
    named = labels(result.config.head)
    rows = []
    for name, method in milestones(result).items():
        theirs, speed = SECTION_2_1.get(name, (None, None))
        faster = speed / SECTION_2_1[PLAINLY][1] if speed else None
        rows.append(
            (
                f"{name}, {named[method]}" if method in named else name, *cells(part, method, ("N_target/N", "N_disc/N")),
                text_of(expected_rate(result, method), ".1f"), *cells(part, method, ("tokens/s", "speed-up")),
                text_of(theirs, ".3f"), text_of(speed), text_of(faster),
            )
        )  # fmt: skip
    notes = (
        "The oracle drafts up to the next token on which the models differ (lemma 2.1), so it discards nothing. The paper's"
        " figures are those of Alpaca.",
        f"by Eq. 2.3: tokens/s from the two rates, with the times of table 2. {SPEEDUP}",
        *((part.equality(),) if part else ()),
    )
    headings = (
        "", "N_target/N", "N_disc/N", "by Eq. 2.3", "tokens/s", "speed-up", "paper's N_target/N", "paper's tokens/s",
        "paper's speed-up",
    )  # fmt: skip
    return Section("Section 2.1: the oracle", headings, tuple(rows), notes)


def table_2(result: SpecDecResult) -> Section:
    """Time of a forward, by regression."""
    rows = []
    for name, theirs in TABLE_2.items():
        times = next((one for one in result.times if one.setting == name), None)
        answers = str(times.wall.answers) if times and times.wall else "-"
        own = [cell for fit in (times.wall, times.processor) for cell in _fit_cells(fit)] if times else ["-"] * 6
        rows.append((name, *own, answers, *(text_of(value and 1e3 * value, ".1f") for value in theirs)))
    notes = [
        "Milliseconds per forward: T = t_draft N_draft + t_target N_target (Eq. 2.1) by least squares over the answers, the"
        " forwards over the prompts included. R2: share of the variance of T that the fit explains. cpu: in processor time.",
        "The paper's: Llama-2 7B and 70B on two A100, means over its data sets; all its R2 are at least 0.98.",
    ]
    if result.pair_times is not None:
        draft, target = result.pair_times
        notes.append(
            f"Used for Eq. 2.3, fitted to both together: {1e3 * draft:.2f} and {1e3 * target:.2f} ms, a ratio of"
            f" {target / draft:.1f}; the paper's ratio: {PAPER_RATIO:.1f}."
        )
    headings = (
        "ms per forward", "t_draft", "t_target", "R2", "cpu t_draft", "cpu t_target", "cpu R2", "answers", "paper's t_draft",
        "paper's t_target",
    )  # fmt: skip
    return Section("Table 2, figure 3: forward times", headings, tuple(rows), tuple(notes))


def figure_4(result: SpecDecResult) -> Section:
    """Verification rate against discard rate."""
    sets = list(result.counts.sets)
    shown = (None, *(sets if len(sets) <= _MOST_SETS else ()))
    rows = []
    for family in families(result.config.head):
        measured = [result.counts.points(family.methods.values(), name) for name in shown]
        best = [{point.method for point in pareto_front(points)} for points in measured]
        rates = [
            {point.method: f"{point.discard_rate:.3f}, {point.verification_rate:.3f}" for point in points} for points in measured
        ]
        for text, method in family.methods.items():
            pairs = [f"{own.get(method, '-')}{'*' if method in front else ''}" for own, front in zip(rates, best, strict=True)]
            rows.append((text, *pairs, *cells(result.counts.part, method, ("S", "draft/ token"))))
    pairs = [
        f"{one.discard_rate:.3f}, {one.verification_rate:.3f}" for name in shown for one in result.counts.points([ORACLE], name)
    ]
    rows += [(ORACLE, *pairs, *cells(result.counts.part, ORACLE, ("S", "draft/ token")))] if len(pairs) == len(shown) else []
    plain = result.counts.part.method(PLAIN)
    notes = (
        "Each cell: N_disc/N, drafted tokens that were not kept, and N_target/N, target forwards (those over the prompt"
        " included), per new token. *: on the Pareto front of its own kind of rule. product, confidence and entropy stop below"
        " the bound named (`paceline drafters`); like the head they draft at most 20 tokens.",
        "newest=false: the rule as published, which does not judge the newest token (option `newest` of specdec_pp).",
        f"Of {plain.answers if plain else 0} prompts the first head was trained or calibrated on {result.seen}.",
        "The paper shows its points as a picture only: no numbers stand beside these.",
        result.counts.part.equality(),
    )
    headings = ("rule", *(name or ALL for name in shown), "S", "draft/ token")
    return Section("Figure 4: N_disc/N, N_target/N", headings, tuple(rows), notes)


def figure_4_fronts(result: SpecDecResult) -> Section:
    """The head's front against the others."""
    rows = tuple(
        (
            f"{one.rival}, {one.name}", str(one.points), str(one.within), str(one.below), str(one.above), text_of(one.forwards),
            text_of(one.discards), text_of(one.gain),
        )
        for one in fronts(result.counts, result.config.head)
    )  # fmt: skip
    headings = (
        "rival, prompts", "on its front", "in reach", "head below", "head above", "forwards", "discards", "latency gain",
    )  # fmt: skip
    notes = (
        "in reach: points of the rival's front at whose discard rate the head's front, joined by straight lines, exists; below,"
        " above: where the head needs fewer target forwards, or more.",
        "forwards: head over rival at equal discards; discards: the same at equal forwards; means. latency gain: the rival's"
        f" least latency over the head's by Eq. 2.3, for a target forward of {PAPER_RATIO:.1f} draft forwards as the paper's.",
    )
    return Section("Figure 4: the head's Pareto front against others", headings, rows, notes)


def table_1_expected(result: SpecDecResult) -> Section:
    """Best against best as the paper has it."""
    picks = expected(result)
    notes = (
        "As the paper does: rates of figure 4, tokens/s by Eq. 2.3 with the times of table 2, each best over K 2 to 14 and the"
        " thresholds 0.1 to 0.9.",
        "The paper's rows: Llama-2-chat 7B and 70B; its version 1 has the labels of the two rows of its table swapped.",
    )
    return _table_1("Table 1: best against best, by equation 2.3", picks, notes)


def table_1_measured(result: SpecDecResult) -> Section:
    """Best against best by the clock."""
    picks = measured_picks(result.timed, result.config.head) if result.timed else []
    notes = (
        f"tokens/s by the clock, the best of each kind chosen by it. {SPEEDUP}",
        f"gain: over the best fixed K. {CPU_TIME}",
        *(() if any(pick.auto for pick in picks) else ("threshold=auto needs a head whose card has a curve.",)),
    )
    return _table_1("Table 1: best against best, by the clock", picks, notes)


def expected(result: SpecDecResult) -> list[Pick]:
    """Table 1 by equation 2.3; empty until times are known."""
    if result.pair_times is None:
        return []
    alone = next((one.wall for one in result.times if one.setting == TARGET_ALONE), None)
    return expected_picks(result.counts, result.config.head, *result.pair_times, alone.target if alone else None)


def heads_table(result: SpecDecResult) -> Section:
    """Heads beside one another, the ablation of appendix C.3."""
    rows = []
    for sweep, heads in ((result.counts, result.heads), (result.grid, result.grid_heads)):
        for head in heads if sweep else ():
            point = cheapest(sweep.points(head.methods.values()), 1.0, PAPER_RATIO) if sweep else None
            named = {method: threshold for threshold, method in head.methods.items()}
            rows.append(
                (
                    head.label, text_of(head.depth, "d"), text_of(head.reject_weight, "g"),
                    text_of(head.calibration_error, ".3f"), text_of(head.roc_area, ".3f"), named[point.method] if point else "-",
                    *(text_of(one, ".3f") for one in ((point.discard_rate, point.verification_rate) if point else (None, None))),
                    text_of(latency(1.0, PAPER_RATIO, point) if point else None),
                )
            )  # fmt: skip
    notes = [
        "ECE: expected calibration error over 15 bins, after calibration; ROC: area under the curve; both on prompts held out of"
        " training. best h: of least latency (Eq. 2.3, in draft forwards per new token, target forward"
        f" {PAPER_RATIO:.1f} draft forwards)."
    ]
    if result.grid is None:
        notes.append(
            f"For the ablation over w_rej and D: record (`paceline head record`), then --paper {HEADED} --recording FOLDER, which"
            " trains a head for each; heads of your own are compared with --head FOLDER, repeated."
        )
    else:
        plain = result.grid.part.figures[0]
        notes.append(
            f"{len(result.grid_heads)} of {GRID} heads of w_rej 1, 3, 6, 12 and D 0 to 4 were trained in the time, {EPOCHS}"
            f" epochs each, on the hidden state alone as in the paper; thresholds {', '.join(map(str, PAPER_THRESHOLDS))};"
            f" {plain.answers} prompts."
        )
    headings = ("head", "D", "w_rej", "ECE", "ROC", "best h", "N_disc/N", "N_target/N", "latency")
    notes.append("The paper: w_rej 6, D 3, h 0.7 gives 99.3 % of the best tokens/s or more on each of its data sets.")
    return Section("Appendix C.3: heads", headings, tuple(rows), tuple(notes))


def _table_1(title: str, picks: Seq[Pick], notes: Seq[str]) -> Section:
    rows = []
    for pick in [*picks, *TABLE_1]:
        name = f"paper: {pick.name}" if pick in TABLE_1 else pick.name
        best = [cell for choice in (pick.fixed, pick.head) for cell in _choice_cells(pick, choice)]
        gains = [text_of(one, ".3f") for one in (pick.gain(pick.head), pick.cpu_gain)]
        auto = (text_of(pick.auto.rate if pick.auto else None, ".1f"), text_of(pick.gain(pick.auto), ".3f"))
        rows.append((name, text_of(pick.plain, ".1f"), *best, *gains, *auto))
    headings = (
        "prompts", "plain", "SpecDec", "tokens/s", "speed-up", "SpecDec++", "tokens/s", "speed-up", "gain", "CPU gain", "auto",
        "auto gain",
    )  # fmt: skip
    return Section(title, headings, tuple(rows), tuple(notes))


def _choice_cells(pick: Pick, choice: Choice | None) -> tuple[str, ...]:
    if choice is None:
        return ("-",) * 3
    return choice.label, text_of(choice.rate, ".1f"), text_of(pick.speedup(choice))


def _fit_cells(fit: ForwardTimes | None) -> tuple[str, ...]:
    if fit is None:
        return ("-",) * 3
    return (*(text_of(None if one is None else 1e3 * one) for one in (fit.draft, fit.target)), text_of(fit.r_squared, ".3f"))
