"""Build the tables and figures of the Ouroboros paper (Zhao et al. 2024)."""

from __future__ import annotations

from paceline.report.tables import Table
from papers.order_settings import TASK_SIZE
from papers.orders import scaled
from papers.ouroboros.paper_settings import (
    COLD,
    MATCH_GAMMA,
    NOTHING,
    PAPER_SPEED,
    SUFFIXES,
    TABLE_1_PAPER,
    TABLE_2,
    TABLE_2_COLUMNS,
    TABLE_3,
    TABLE_4,
    WARM,
    figure_5_spec,
)
from papers.ouroboros.result import LONGEST, Matches, MatchStudy, OuroborosResult
from papers.part import (
    CPU_TIME,
    PICTURE,
    SPEEDUP,
    BenchPart,
    TableLayout,
    cells,
    columns,
    line_table,
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
    """Return the counts for each task and, with several tasks, their sums."""
    tasks = list(study.tasks) if study is not None else []
    return [*tasks, Matches.total(tasks)] if len(tasks) > 1 else tasks


def table_1(study: MatchStudy | None) -> Table:
    """Return table 1: numbers of accepted tokens and of matching tokens."""
    means = {task.task: task.per_verification() for task in tasks_of(study)}
    means |= {f"paper's {name}": pair for name, pair in TABLE_1_PAPER.items()}
    rows = [
        (name, *(mean[index] for mean in means.values()))
        for index, name in enumerate(("accepted, len(LCP)", "match, #Match-1"))
    ]
    notes = [
        f"Plain speculative decoding, greedy, with drafts of {MATCH_GAMMA} tokens. accepted:"
        " tokens that the target accepts; match: draft tokens that equal the target's prediction"
        " at their position. Drafts cut short by the end of an answer are not counted."
    ]
    if study is not None:
        verified = "; ".join(
            f"{task.task} {task.verifications} ({task.rejected})" for task in study.tasks
        )
        notes.append(
            f"Prompts answered: {study.prompts}. Verifications per task, with the number"
            f" that rejected a token in parentheses: {verified or 'none'}."
        )
    title = (
        f"Table 1: Each cell shows how many of {MATCH_GAMMA} draft tokens are accepted, or match"
        " the target's predictions"
    )
    return Table.of(title, ["per verification", *means], rows, notes, ".1f")


def figure_3(study: MatchStudy | None) -> Table:
    """Return figure 3: runs of matching tokens among the discarded tokens."""
    tasks = [task for task in tasks_of(study) if task.rejected]
    lengths = range(1, LONGEST + 1) if tasks else ()
    discarded = "; ".join(f"{task.task} {task.discarded / task.rejected:.1f}" for task in tasks)
    notes = (
        "The values are means over the verifications that rejected a token. The discarded tokens"
        f" are those after the first wrong token. Their mean number: {discarded or '-'}.",
        PICTURE,
    )
    rows = [(f"k = {k}", *(task.per_rejection()[k - 1] for task in tasks)) for k in lengths]
    return Table.of(
        "Figure 3: Each cell shows #Match-k, the number of runs of k matching tokens among the"
        " discarded tokens",
        ["", *(task.task for task in tasks)],
        rows,
        notes,
    )


def table_2(part: BenchPart) -> Table:
    """Return table 2: the speed of all methods and of greedy decoding."""
    notes = (
        "The paper's columns show speed-ups with two pairs of models: Yi 34b and 6b, and Llama-2"
        " 70b and 7b. The authors tuned every method for each model and task (table 7). For figure"
        " 4 (code), the paper reports speed-ups of up to 3.9 over greedy, 2.8 over speculative and"
        " 1.9 over lookahead decoding.",
        "The paper's setting: gamma 12, W 20, N 8, K 3, with the paper's inspiration rule and"
        " tree. Two things differ from the paper: the draft is not truncated to gamma tokens, and"
        " the pool also contains phrases from the prompt and the text so far.",
        "warm: all prompts in a pass share one pool, which is empty before the first prompt.",
        f"{SPEEDUP} {CPU_TIME} draft/token: draft forward passes per new token.",
        part.equality(),
    )
    title = (
        "Table 2, figure 4: Each row shows the speed of greedy, speculative or lookahead decoding,"
        " or of Ouroboros"
    )
    layout = TableLayout(title, ("method", *_COLUMNS), TABLE_2_COLUMNS, TABLE_2)
    return line_table(layout, part, notes)


def table_3(part: BenchPart) -> Table:
    """Return table 3: the speed with some parts of the method turned off."""
    notes = (
        "The paper's columns are for HumanEval with Yi 34b and 6b. speed-up: tokens/s"
        ' relative to the row "drafted in phrases", both here and in the paper.',
        "Rows 2 to 9 use the paper's settings: gamma = 12, W = 20, N = 8. All other rows"
        " use paceline's defaults. Apart from gamma, W and N, the defaults differ from these"
        " settings in two ways. The pool stores the target's predictions at all nodes. The draft"
        " tree also contains the draft model's alternatives to its tokens, and phrases that"
        " directly follow the newest token.",
    )
    columns = ("setting", *_COLUMNS)
    title = "Table 3: Each row shows the speed with some or all parts of Ouroboros"
    layout = TableLayout(title, columns, PAPER_SPEED, TABLE_3, base=NOTHING)
    return line_table(layout, part, notes)


def figure_5(part: BenchPart) -> Table:
    """Return figure 5: the speed by number of suffixes, K."""
    headings, published_or_default = ("tokens/s", "CPU time", "S", "fed/ step"), (True, False)
    rows = [
        (
            f"K = {k}",
            *(
                cell
                for published in published_or_default
                for cell in cells(
                    part, figure_5_spec(k, published), headings, figure_5_spec(0, published)
                )
            ),
        )
        for k in SUFFIXES
    ]
    notes = (
        "The first columns use gamma 12, W 20, N 8, as in the paper. The others use paceline's"
        " defaults. CPU time: speed-up over K = 0, computed from processor time.",
        "The paper shows this curve only in a figure.",
    )
    shown = ["", *columns(headings), *columns(headings, "default's ")]
    return Table.of(
        "Figure 5: Each row shows the speed with up to K suffixes after the draft",
        shown,
        rows,
        notes,
    )


def table_4(result: OuroborosResult) -> Table:
    """Return table 4: phrase pools kept between prompts, in several prompt orders."""
    size, headings = result.size, ("tokens/s", "speed-up", "CPU time", "S", "draft/ token")
    # whether random -> rate
    cold = {number is None: rate for number, warm, rate in TABLE_4 if not warm}
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
        f"Each category of prompts counts as a task; prompts per task: {size} (in the paper:"
        f" {TASK_SIZE} for each of four tasks). CN: number of"
        f" consecutive prompts from one task, if each task has {TASK_SIZE} prompts. The number in"
        " parentheses is CN, scaled to the number of prompts per task in this run.",
        "Each order of the prompts was measured in a separate run, with two drafters that had"
        " default options: one with a cold pool and one with a warm pool."
        " Each prompt was answered with both drafters before the next prompt."
        " speed-up: tokens/s relative to the cold drafter in the same run. In the paper, the"
        " baseline of the shuffled run is the shuffled cold run, and the baseline of every other"
        " run is the cold run with CN = 20.",
    )
    title = "Table 4: Each row shows the speed with a cold or a warm pool, for one order of prompts"
    return Table.of(title, ["order", *columns(headings), *PAPER_SPEED], rows, notes)
