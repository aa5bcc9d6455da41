"""The tables and figures of the Ouroboros paper (Zhao et al. 2024): its own numbers, and which
drafter stands for each row.
"""

from __future__ import annotations

from paceline.bench.papers.orders import CONSECUTIVE, TASK_SIZE, scaled
from paceline.bench.papers.ouroboros.result import LONGEST, Matches, MatchStudy, OuroborosResult
from paceline.bench.papers.part import (
    CPU_TIME,
    PICTURE,
    PLAIN,
    SPEEDUP,
    BenchPart,
    TableLine,
    cells,
    columns,
    line_table,
)
from paceline.report.tables import Table

MATCH_GAMMA = 20  # of table 1 and figure 3
SUFFIXES = (0, 1, 3, 5, 10, 20)  # K of figure 5; the paper's pool holds 20 phrases per token
COLD, WARM = "ouroboros", "ouroboros:shared_pool=true"


def spec_of(
    suffixes: int = 3, inspiration: str = "paper", refinement: bool = True, warm: bool = False
) -> str:
    """Return the drafter of table 3 and figure 5 (appendix B): gamma 12, W 20, N 8, a tree of
    draft and suffixes alone.
    """
    flags = f"refinement={str(refinement).lower()},shared_pool={str(warm).lower()}"
    published = f"gamma=12,window=20,ngram=8,suffixes={suffixes},max_branches=0"
    return f"ouroboros:{published},inspiration={inspiration},{flags}"


def figure_5_spec(suffixes: int, published: bool) -> str:
    """Return the drafter of a point of figure 5, with the paper's setting or the defaults here;
    K = 0 refines none.
    """
    if published:
        return spec_of(suffixes, refinement=suffixes > 0)
    return COLD if suffixes == 3 else f"{COLD}:suffixes={suffixes}"


TABLE_2_COLUMNS = (
    "GSM8K Yi",
    "GSM8K Llama",
    "CNN/DM Yi",
    "CNN/DM Llama",
    "WMT16 Yi",
    "WMT16 Llama",
)
_LOOKAHEAD = "lookahead:window=15,ngram=6,guesses=15,prompt_pool=false"
TABLE_2 = (  # speed-ups; Yi 34b with 6b, Llama-2 70b with 7b
    TableLine("greedy", PLAIN, (1.00,) * 6),
    TableLine(
        "speculative, 5 tokens",
        "draft_model:max_draft_tokens=5",
        (1.11, 1.88, 1.22, 1.57, 1.18, 1.55),
    ),
    TableLine("speculative, default here", "draft_model"),
    TableLine("lookahead (6, 15, 15)", _LOOKAHEAD, (1.64, 1.54, 1.28, 1.17, 1.22, 1.54)),
    TableLine("lookahead, default here", "lookahead"),
    TableLine("Ouroboros, paper's setting", spec_of(), (1.72, 2.48, 1.45, 1.80, 1.34, 2.01)),
    TableLine("Ouroboros, paper's, warm", spec_of(warm=True), (1.84, 2.68, 1.55, 1.81, 1.35, 2.02)),
    TableLine("Ouroboros, default here", COLD),
    TableLine("Ouroboros, default here, warm", WARM),
)

NOTHING = spec_of(0, "off", refinement=False)


def _ablated(label: str, method: str, rate: float) -> TableLine:
    return TableLine(label, method, (rate, rate / 49.90))


PAPER_SPEED = ("paper's tokens/s", "paper's speed-up")
TABLE_3 = (  # HumanEval, Yi 34b with 6b, no warm start
    TableLine("draft model alone, 12 tokens", "draft_model:max_draft_tokens=12"),
    _ablated("drafted in phrases", NOTHING, 49.90),
    _ablated("+ inspiration", spec_of(0, refinement=False), 48.90),
    _ablated("+ suffixes", spec_of(3, "off", refinement=False), 55.92),
    _ablated("+ inspiration, suffixes", spec_of(3, refinement=False), 56.97),
    _ablated("+ suffixes, refinement", spec_of(3, "off"), 57.23),
    _ablated("+ all three", spec_of(), 58.18),
    TableLine("all, the code's inspiration", spec_of(inspiration="code")),
    TableLine("all, every node inspires", spec_of(inspiration="every")),
    TableLine("default here", COLD),
    TableLine("default, no inspiration", f"{COLD}:inspiration=off"),
    TableLine("default, no refinement", f"{COLD}:refinement=false"),
    TableLine("default, no suffixes", figure_5_spec(0, published=False)),
    TableLine("default, no further choices", f"{COLD}:max_branches=0"),
)
# Consecutive number (None = drawn order), warm, tokens/s of the paper; gamma 6, W 18, N 6, K 3.
TABLE_4: tuple[tuple[int | None, bool, float], ...] = (
    (None, False, 32.68), (20, False, 32.53), (None, True, 35.39), (20, True, 36.00), (10, True,
    35.32), (4, True, 34.83),
    (1, True, 35.36),
)  # fmt: skip
TABLE_1_PAPER = {
    "MBPP": (12.7, 18.9),
    "CNN/DM": (8.4, 17.8),
    "WMT-16": (5.3, 17.0),
}  # Yi 34b with 6b: LCP, #Match-1

_FIGURE_5 = [
    figure_5_spec(suffixes, published) for published in (True, False) for suffixes in SUFFIXES
]
METHODS = tuple(
    dict.fromkeys(
        [*(line.method for line in (*TABLE_2, *TABLE_3) if line.method is not None), *_FIGURE_5]
    )
)
_COLUMNS = ("tokens/s", "speed-up", "CPU time", "S", "draft/ token", "fed/ step", "equal")


def sections(result: OuroborosResult) -> list[Table]:
    """Return every table and figure in the order of the paper."""
    return [
        table_1(result.matches),
        figure_3(result.matches),
        table_2(result.methods),
        table_3(result.methods),
        figure_5(result.methods),
        table_4(result),
    ]


def tasks_of(study: MatchStudy | None) -> list[Matches]:
    """Return what was counted per task, and for all together if there are several."""
    tasks = list(study.tasks) if study is not None else []
    return [*tasks, Matches.total(tasks)] if len(tasks) > 1 else tasks


def table_1(study: MatchStudy | None) -> Table:
    """Return accepted tokens beside tokens that match."""
    means = {task.task: task.per_verification() for task in tasks_of(study)}
    means |= {f"paper's {name}": pair for name, pair in TABLE_1_PAPER.items()}
    rows = [
        (name, *(mean[place] for mean in means.values()))
        for place, name in enumerate(("accepted, len(LCP)", "match, #Match-1"))
    ]
    notes = [
        f"Plain speculative decoding, greedy, drafts of {MATCH_GAMMA} tokens: how many the target"
        " accepts, and how many are its"
        " own choice in their place, given the draft before them. Drafts cut short by the end of"
        " an answer do not count."
    ]
    if study is not None:
        verified = "; ".join(
            f"{task.task} {task.verifications}, {task.rejected} with a rejection"
            for task in study.tasks
        )
        notes.append(
            f"Prompts answered: {study.prompts}. Verifications counted: {verified or 'none'}."
        )
    title = f"Table 1: accepted and matching tokens of {MATCH_GAMMA} drafted"
    return Table.of(title, ["per verification", *means], rows, notes, ".1f")


def figure_3(study: MatchStudy | None) -> Table:
    """Return common substrings among discarded tokens."""
    tasks = [task for task in tasks_of(study) if task.rejected]
    lengths = range(1, LONGEST + 1) if tasks else ()
    behind = "; ".join(f"{task.task} {task.discarded / task.rejected:.1f}" for task in tasks)
    notes = (
        "Means over the verifications that rejected a token. Discarded are the draft tokens behind"
        " the first wrong one, on"
        f" average: {behind or '-'}.",
        PICTURE,
    )
    rows = [(f"k = {k}", *(task.per_rejection()[k - 1] for task in tasks)) for k in lengths]
    return Table.of(
        "Figure 3: #Match-k among the discarded tokens",
        ["", *(task.task for task in tasks)],
        rows,
        notes,
    )


def table_2(part: BenchPart) -> Table:
    """Return all methods beside greedy decoding."""
    notes = (
        "The paper's columns: speed-ups with Yi 34b and 6b, Llama-2 70b and 7b; it tuned every"
        " method per model and task (table"
        " 7). Of figure 4, code, it says: at most 3.9 over greedy, 2.8 over speculative and 1.9"
        " over lookahead decoding.",
        "The paper's setting: gamma 12, W 20, N 8, K 3, its rule of inspiration, its tree. As"
        " everywhere here, the draft is"
        " not cut to gamma tokens, and the text so far is in the pool, the prompt too.",
        "warm: one pool for all prompts of a pass, empty before the first.",
        f"{SPEEDUP} {CPU_TIME} draft/token: forwards of the draft model per new token.",
        part.equality(),
    )
    title = "Table 2, figure 4: greedy, speculative, lookahead decoding and Ouroboros"
    return line_table(title, ("method", *_COLUMNS), TABLE_2_COLUMNS, part, TABLE_2, notes)


def table_3(part: BenchPart) -> Table:
    """Return the parts of the method switched off and on."""
    notes = (
        "The paper's columns: HumanEval, Yi 34b with 6b. speed-up: over the second row, in both.",
        "Rows 2 to 9 have the paper's gamma 12, W 20, N 8; the others the defaults here, which"
        " change more than the numbers: a"
        " small window, further choices of the draft model, and phrases behind the newest token.",
    )
    return line_table(
        "Table 3: ablation", ("setting", *_COLUMNS), PAPER_SPEED, part, TABLE_3, notes, base=NOTHING
    )


def figure_5(part: BenchPart) -> Table:
    """Return the speed over K."""
    headings, kinds = ("tokens/s", "CPU time", "S", "fed/ step"), (True, False)
    rows = [
        (
            f"K = {k}",
            *(
                cell
                for kind in kinds
                for cell in cells(part, figure_5_spec(k, kind), headings, figure_5_spec(0, kind))
            ),
        )
        for k in SUFFIXES
    ]
    notes = (
        "First with gamma 12, W 20, N 8 as in the paper, then with the defaults here. CPU time:"
        " speed-up over K = 0 in processor"
        " time.",
        "The paper shows its curve as a picture only.",
    )
    shown = ["", *columns(headings), *columns(headings, "default's ")]
    return Table.of("Figure 5: suffixes behind the draft", shown, rows, notes)


def table_4(result: OuroborosResult) -> Table:
    """Return warm pools under several orders of the prompts."""
    size, headings = result.size, ("tokens/s", "speed-up", "CPU time", "S", "draft/ token")
    cold = {
        number is None: rate for number, warm, rate in TABLE_4 if not warm
    }  # of the drawn order and of the other one
    rows = []
    for number, warm, rate in TABLE_4:
        order = "shuffled" if number is None else f"CN = {number} (here {scaled(number, size)})"
        label, method = (f"{order}, warm", WARM) if warm else (f"{order}, cold", COLD)
        rows.append(
            (
                label,
                *cells(result.order(number), method, headings, COLD),
                rate,
                rate / cold[number is None],
            )
        )
    notes = (
        f"The categories of the prompts are the tasks; prompts per task: {size} (the paper:"
        f" {TASK_SIZE}, of four tasks). CN: how"
        " many of one task follow one another, as large a share as the paper's"
        f" ({', '.join(map(str, CONSECUTIVE))} of"
        f" {TASK_SIZE}).",
        "Every order is a run of its own in which the cold and the warm drafter, both with the"
        " defaults here, take turns prompt"
        " by prompt. speed-up: over the cold one of the same run; the paper's over its own cold"
        " run, shuffled or CN = 20.",
    )
    return Table.of(
        "Table 4: locality of a warm pool", ["order", *columns(headings), *PAPER_SPEED], rows, notes
    )
