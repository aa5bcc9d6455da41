"""The tables and figures of the Ouroboros paper (Zhao et al. 2024): its own numbers, and which drafter stands for each row."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import Any

from paceline.bench.locality import CONSECUTIVE, OF, Order, scaled
from paceline.bench.matches import LONGEST, Matches, MatchStudy
from paceline.bench.paper import Part, Section
from paceline.bench.paper_lines import CPU_TIME, PLAIN, SPEEDUP, Line, cells, ratio, table, text_of

MATCH_GAMMA = 20  # of table 1 and figure 3
SUFFIXES = (0, 1, 3, 5, 10, 20)  # K of figure 5; the paper's pool holds 20 phrases per token
COLD, WARM = "ouroboros", "ouroboros:warm=true"


def spec_of(suffixes: int = 3, inspiration: str = "paper", refinement: bool = True, warm: bool = False) -> str:
    """The drafter of table 3 and figure 5 (appendix B): gamma 12, W 20, N 8, a tree of draft and suffixes alone."""
    flags = f"refinement={str(refinement).lower()},warm={str(warm).lower()}"
    return f"ouroboros:gamma=12,window=20,ngram=8,suffixes={suffixes},branches=0,inspiration={inspiration},{flags}"


def figure_5_spec(suffixes: int, published: bool) -> str:
    """The drafter of a point of figure 5, with the paper's setting or the defaults here. Without suffixes, none are refined."""
    if published:
        return spec_of(suffixes, refinement=suffixes > 0)
    return COLD if suffixes == 3 else f"{COLD}:suffixes={suffixes}"


TABLE_2_COLUMNS = ("GSM8K Yi", "GSM8K Llama", "CNN/DM Yi", "CNN/DM Llama", "WMT16 Yi", "WMT16 Llama")
_LOOKAHEAD = "lookahead:window=15,ngram=6,guesses=15,prompt_pool=false"
TABLE_2 = (  # speed-ups; Yi 34b with 6b, Llama-2 70b with 7b
    Line("greedy", PLAIN, (1.00,) * 6),
    Line("speculative, 5 tokens", "draft_model:length=5", (1.11, 1.88, 1.22, 1.57, 1.18, 1.55)),
    Line("speculative, default here", "draft_model"),
    Line("lookahead (6, 15, 15)", _LOOKAHEAD, (1.64, 1.54, 1.28, 1.17, 1.22, 1.54)),
    Line("lookahead, default here", "lookahead"),
    Line("Ouroboros, paper's setting", spec_of(), (1.72, 2.48, 1.45, 1.80, 1.34, 2.01)),
    Line("Ouroboros, paper's, warm", spec_of(warm=True), (1.84, 2.68, 1.55, 1.81, 1.35, 2.02)),
    Line("Ouroboros, default here", COLD),
    Line("Ouroboros, default here, warm", WARM),
)

NOTHING = spec_of(0, "off", refinement=False)


def _ablated(label: str, method: str, rate: float) -> Line:
    return Line(label, method, (rate, rate / 49.90))


TABLE_3_COLUMNS = ("paper's tokens/s", "paper's speed-up")
TABLE_3 = (  # HumanEval, Yi 34b with 6b, no warm start
    Line("draft model alone, 12 tokens", "draft_model:length=12"),
    _ablated("drafted in phrases", NOTHING, 49.90),
    _ablated("+ inspiration", spec_of(0, refinement=False), 48.90),
    _ablated("+ suffixes", spec_of(3, "off", refinement=False), 55.92),
    _ablated("+ inspiration, suffixes", spec_of(3, refinement=False), 56.97),
    _ablated("+ suffixes, refinement", spec_of(3, "off"), 57.23),
    _ablated("+ all three", spec_of(), 58.18),
    Line("all, the code's inspiration", spec_of(inspiration="code")),
    Line("all, every node inspires", spec_of(inspiration="every")),
    Line("default here", COLD),
    Line("default, no inspiration", f"{COLD}:inspiration=off"),
    Line("default, no refinement", f"{COLD}:refinement=false"),
    Line("default, no suffixes", figure_5_spec(0, published=False)),
    Line("default, no further choices", f"{COLD}:branches=0"),
)
# Consecutive number (None = drawn order), warm, tokens/s of the paper; gamma 6, W 18, N 6, K 3.
TABLE_4: tuple[tuple[int | None, bool, float], ...] = (
    (None, False, 32.68), (20, False, 32.53), (None, True, 35.39), (20, True, 36.00), (10, True, 35.32), (4, True, 34.83),
    (1, True, 35.36),
)  # fmt: skip
TABLE_1_PAPER = {"MBPP": (12.7, 18.9), "CNN/DM": (8.4, 17.8), "WMT-16": (5.3, 17.0)}  # Yi 34b with 6b: LCP, #Match-1

_FIGURE_5 = [figure_5_spec(suffixes, published) for published in (True, False) for suffixes in SUFFIXES]
METHODS = tuple(dict.fromkeys([*(line.method for line in (*TABLE_2, *TABLE_3) if line.method is not None), *_FIGURE_5]))
_COLUMNS = ("tokens/s", "speed-up", "CPU time", "S", "draft/ token", "fed/ step", "equal")


def tasks_of(study: MatchStudy | None) -> list[Matches]:
    """What was counted per task, and for all together if there are several."""
    tasks = list(study.tasks) if study is not None else []
    return [*tasks, Matches.total(tasks)] if len(tasks) > 1 else tasks


def table_1(study: MatchStudy | None) -> Section:
    """Accepted tokens against tokens that match."""
    tasks = tasks_of(study)
    means = [task.per_verification() for task in tasks]
    rows = tuple(
        (name, *(text_of(mean[place], ".1f") for mean in means), *(f"{pair[place]:.1f}" for pair in TABLE_1_PAPER.values()))
        for place, name in enumerate(("accepted, len(LCP)", "match, #Match-1"))
    )
    headings = ("per verification", *(task.task for task in tasks), *(f"paper's {name}" for name in TABLE_1_PAPER))
    notes = (
        f"Plain speculative decoding, greedy, drafts of {MATCH_GAMMA} tokens: how many the target accepts, and how many are its"
        " own choice in their place, given the draft before them. Drafts cut short by the end of an answer do not count.",
        *_counted(study),
    )
    return Section(f"Table 1: accepted and matching tokens of {MATCH_GAMMA} drafted", headings, rows, notes)


def figure_3(study: MatchStudy | None) -> Section:
    """Common substrings among discarded tokens."""
    tasks = [task for task in tasks_of(study) if task.rejected]
    lengths = range(1, LONGEST + 1) if tasks else ()
    rows = tuple((f"k = {k}", *(text_of(task.per_rejection()[k - 1]) for task in tasks)) for k in lengths)
    behind = "; ".join(f"{task.task} {task.discarded / task.rejected:.1f}" for task in tasks)
    notes = (
        "Means over the verifications that rejected a token. Discarded are the draft tokens behind the first wrong one, on"
        f" average: {behind or '-'}.",
        "The paper shows its values as a picture only: no numbers stand beside these.",
    )
    return Section("Figure 3: #Match-k among the discarded tokens", ("", *(task.task for task in tasks)), rows, notes)


def table_2(part: Part) -> Section:
    """All methods against greedy decoding."""
    notes = (
        "The paper's columns: speed-ups with Yi 34b and 6b, Llama-2 70b and 7b; it tuned every method per model and task (table"
        " 7). Of figure 4, code, it says: at most 3.9 over greedy, 2.8 over speculative and 1.9 over lookahead decoding.",
        "The paper's setting: gamma 12, W 20, N 8, K 3, its rule of inspiration, its tree. As everywhere here, the draft is"
        " not cut to gamma tokens, and the text so far is in the pool, the prompt too.",
        "warm: one pool for all prompts of a pass, empty before the first.",
        f"{SPEEDUP} {CPU_TIME} draft/token: forwards of the draft model per new token.",
        part.equality(),
    )
    title = "Table 2, figure 4: greedy, speculative, lookahead decoding and Ouroboros"
    return table(title, ("method", *_COLUMNS), TABLE_2_COLUMNS, part, TABLE_2, notes)


def table_3(part: Part) -> Section:
    """The parts of the method switched off and on."""
    notes = (
        "The paper's columns: HumanEval, Yi 34b with 6b. speed-up: over the second row, in both.",
        "Rows 2 to 9 have the paper's gamma 12, W 20, N 8; the others the defaults here, which change more than the numbers: a"
        " small window, further choices of the draft model, and phrases behind the newest token.",
    )
    return table("Table 3: ablation", ("setting", *_COLUMNS), TABLE_3_COLUMNS, part, TABLE_3, notes, base=NOTHING)


def figure_5(part: Part) -> Section:
    """Tokens per second over K."""
    columns = ("tokens/s", "CPU time", "S", "fed/ step")
    rows = []
    for k in SUFFIXES:
        row = [f"K = {k}"]
        for published in (True, False):
            row += cells(part, figure_5_spec(k, published), columns, figure_5_spec(0, published))
        rows.append(tuple(row))
    headings = ("", *columns, *(f"default's {column}" for column in columns))
    notes = (
        "First with gamma 12, W 20, N 8 as in the paper, then with the defaults here. CPU time: speed-up over K = 0 in processor"
        " time.",
        "The paper shows its curve as a picture only.",
    )
    return Section("Figure 5: suffixes behind the draft", headings, tuple(rows), notes)


def order_of(orders: Seq[Order], size: int, consecutive: int | None) -> Part | None:
    """What was measured in the order that stands for a consecutive number of the paper (None: the drawn order)."""
    wanted = None if consecutive is None else scaled(consecutive, size)
    return next((order.part for order in orders if order.consecutive == wanted), None)


def order_label(size: int, consecutive: int | None, warm: bool) -> str:
    """Name of a row of table 4."""
    name = "shuffled" if consecutive is None else f"CN = {consecutive} (here {scaled(consecutive, size)})"
    return f"{name}, {'warm' if warm else 'cold'}"


def paper_gain(consecutive: int | None, rate: float) -> float:
    """Tokens/s of the paper over those it has with a cold pool, in the drawn order or the other one it gives."""
    return rate / next(cold for other, warm, cold in TABLE_4 if not warm and (other is None) == (consecutive is None))


def table_4(orders: Seq[Order], size: int) -> Section:
    """Warm pools under several orders of the prompts."""
    columns = ("tokens/s", "speed-up", "CPU time", "S", "draft/ token")
    rows = []
    for consecutive, warm, rate in TABLE_4:
        measured = cells(order_of(orders, size, consecutive), WARM if warm else COLD, columns, COLD)
        rows.append((order_label(size, consecutive, warm), *measured, f"{rate:.2f}", f"{paper_gain(consecutive, rate):.2f}"))
    notes = (
        f"The categories of the prompts are the tasks; prompts per task: {size} (the paper: {OF}, of four tasks). CN: how many"
        f" of one task follow one another, as large a share as the paper's ({', '.join(map(str, CONSECUTIVE))} of {OF}).",
        "Every order is a run of its own in which the cold and the warm drafter, both with the defaults here, take turns prompt"
        " by prompt. speed-up: over the cold one of the same run; the paper's over its own cold run, shuffled or CN = 20.",
    )
    headings = ("order", *columns, "paper's tokens/s", "paper's speed-up")
    return Section("Table 4: locality of a warm pool", headings, tuple(rows), notes)


def locality_summary(orders: Seq[Order], size: int) -> list[dict[str, Any]]:
    """Table 4 as plain values."""
    found = []
    for consecutive, warm, rate in TABLE_4:
        part, method = order_of(orders, size, consecutive), WARM if warm else COLD
        figures = part and part.method(method)
        found.append(
            {
                "label": order_label(size, consecutive, warm),
                "tokens_per_second": figures and figures.tokens_per_second,
                "speedup": ratio(part, method, COLD),
                "cpu_speedup": ratio(part, method, COLD, processor=True),
                "compression": figures and figures.tokens_per_forward,
                "paper": {"tokens_per_second": rate, "speedup": paper_gain(consecutive, rate)},
            }
        )
    return found


def _counted(study: MatchStudy | None) -> list[str]:
    if study is None:
        return []
    verified = "; ".join(f"{task.task} {task.verifications}, {task.rejected} with a rejection" for task in study.tasks)
    return [f"Prompts answered: {study.prompts}. Verifications counted: {verified or 'none'}."]
