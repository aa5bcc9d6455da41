"""Report a run as a table, as Markdown, and as JSON that can be read back."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.markup import escape

from paceline.bench.bench_settings import MAX_DIVERGENCES, WIDE_COLUMNS
from paceline.bench.environment import Environment
from paceline.bench.result import BenchResult, MethodFigures
from paceline.bench.settings import PLAIN as TRANSFORMERS
from paceline.bench.timed_calls import Divergence
from paceline.bench.verdict import NONE, verdict
from paceline.report.documents import DocumentKind, read_document, write_document
from paceline.report.prompts import cut_note
from paceline.report.tables import Cell, Column, Table

KIND = DocumentKind("paceline bench", 2, BenchResult)
# Column -> the field of `MethodFigures` that it shows; equal answers are a pair.
MEASURES: dict[Column, str] = {
    Column("tokens/s", ".1f"): "tokens_per_second",
    Column("speed-up", ".2f"): "speedup",
    Column("median", ".2f"): "speedup_median",
    Column("CPU time", ".2f"): "cpu_speedup",
    Column("tokens/ forward", ".2f"): "tokens_per_forward",
    Column("accepted/ draft", ".2f"): "accepted_per_draft",
    Column("accepted", ".0%"): "acceptance_rate",
    Column("fed/ step", ".1f"): "fed_per_step",
    Column("target", ".0%"): "target_share",
    Column("draft", ".0%"): "draft_share",
    Column("over- head", ".1%"): "overhead_share",
    Column("equal", "{}/{}"): "equal",
    Column("same bits"): "batch_invariant",
}
_NARROW = (
    "method",
    "tokens/s",
    "speed-up",
    "median",
    "tokens/ forward",
    "accepted/ draft",
    "equal",
    "same bits",
)
# Column -> its explanation below the table.
_LEGEND = {
    "speed-up": "speed-up: tokens/s divided by the value for {baseline}.",
    "median": "median: median of this ratio over {units}.",
    "CPU time": "CPU time: ratio of processor times, which other programs disturb less.",
    "tokens/ forward": "tokens/forward: tokens per request and forward pass, without the"
    " first token and the passes for the prompt; 1 with plain decoding.",
    "accepted/ draft": "accepted/draft: accepted tokens per draft tree.",
    "accepted": "accepted: accepted divided by verified draft tokens.",
    "fed/ step": "fed/step: rows (tokens) per request and step.",
    "target": "target, draft, overhead: shares of the time.",
    "equal": "equal: answers with exactly the same tokens as {reference}.",
    "same bits": "same bits: whether batch invariance guarantees the same answers as plain"
    " decoding.",
}


def print_table(result: BenchResult, console: Console | None = None) -> None:
    """Print the figures, speed-ups by category and differing answers to a console.

    Args:
        result: Result of the run.
        console: Console to print on. Default: standard output.
    """
    console = console or Console(highlight=False)
    console.print(escape("; ".join(setting_parts(result))), style="bold")
    complete = figures_table(result)
    table = complete if console.width >= WIDE_COLUMNS else complete.only(_NARROW)
    for shown_table in [table, *_category_tables(result)]:
        shown_table.show(console)
    for line in [_legend(result, table), *_missing_columns(table), *_notes(result)]:
        console.print(escape(line), style="dim")


def markdown(result: BenchResult) -> str:
    """Return the run as a Markdown section: settings, tables, notes and command line."""
    environment = result.environment
    load = (
        f"load average {_load(environment.load_start)} at the start, {_load(environment.load_end)}"
        " at the end"
    )
    lines = [
        f"### {result.target}, batch {result.batch}",
        "",
        f"{'; '.join(setting_parts(result))}.",
        "",
    ]
    figures = figures_table(result)
    for table in [figures, *_category_tables(result)]:
        lines += table.markdown()
    lines += [
        _legend(result, figures),
        "",
        *(f"- {note}" for note in [*_notes(result), f"{provenance(environment)}; {load}."]),
        "",
    ]
    return "\n".join([*lines, "```", result.config.command(), "```", ""])


def write_json(result: BenchResult, path: str | Path) -> None:
    """Write the complete result as JSON, atomically.

    Raises:
        ConfigError: The file cannot be written.
    """
    scaled = bool(result.config.cost_scale or result.config.draft_cost_scale)
    write_document(
        path,
        KIND,
        result,
        labels={"target": result.target, "draft": result.draft, "cost_scaled": scaled},
        command=result.config.command(),
        summary={
            "all": result.figures(),
            "categories": {name: result.figures(name) for name in result.categories},
        },
    )


def read_json(path: str | Path) -> BenchResult:
    """Read a result written by `write_json`.

    Raises:
        ConfigError: The file does not exist, is damaged, or has a different schema.
    """
    return read_document(path, KIND)


def setting_parts(result: BenchResult) -> list[str]:
    """Return phrases that describe the setup: models, dtype, requests and hardware."""
    config = result.config
    count = len({(call.unit, row.prompt) for call in result.calls for row in call.rows})
    sampling = config.sampling
    sampled = "greedy" if sampling.greedy else f"temperature {sampling.temperature:g}"
    parts = [f"target model: {result.target}"]
    parts += [f"draft model: {result.draft}"] if result.draft else []
    parts += [f"weights: {result.weights}"] if result.weights else []
    parts += [
        result.dtype,
        f"batch {result.batch}",
        sampled,
        f"{count} prompt{'s' if count != 1 else ''}",
        f"up to {sampling.max_new_tokens} new tokens",
    ]
    parts += [f"{config.repeats} repeats"] if config.repeats > 1 else []
    parts += (
        [f"trees shared by {config.lookahead_parallel} ranks (fed: the busiest)"]
        if config.lookahead_parallel
        else []
    )
    parts += [result.environment.hardware]
    return parts if result.complete else [*parts, "PARTIAL: interrupted"]


def provenance(environment: Environment) -> str:
    """Return a run's date, commit and versions."""
    changed = " with local changes" if environment.modified else ""
    versions = ", ".join(f"{name} {version}" for name, version in environment.versions.items())
    return f"{environment.date}, commit {environment.commit or 'unknown'}{changed}; {versions}"


def figures_table(result: BenchResult) -> Table:
    """Return a table that compares all methods over all prompts."""
    rows = [
        (figures.method, *(measured(figures, field) for field in MEASURES.values()))
        for figures in result.figures()
    ]
    return Table.of("", [Column("method", code=True), *MEASURES], rows)


def measured(figures: MethodFigures | None, field: str) -> Cell:
    """Return a figure as a table cell; the cell is None if the figure is unknown."""
    if figures is None or (field == "equal" and not figures.compared):
        return None
    if field == "batch_invariant":
        return (
            None if figures.batch_invariant is None else "yes" if figures.batch_invariant else "no"
        )
    return (figures.equal, figures.compared) if field == "equal" else getattr(figures, field)


def _category_tables(result: BenchResult) -> list[Table]:
    """Return a table of speed-ups by category, if there are several categories."""
    columns = {name: result.figures(name) for name in result.categories}
    if len(columns) < 2:
        return []
    rows = [
        (method, *(_category_cell(column[index]) for column in columns.values()))
        for index, method in enumerate(result.methods)
    ]
    return [
        Table.of(
            "Speed-up (tokens per forward) by category",
            [Column("method", code=True), *columns],
            rows,
        )
    ]


def _category_cell(figures: MethodFigures) -> str:
    speedup = "" if figures.speedup is None else f"{figures.speedup:.2f}"
    forward = "" if figures.tokens_per_forward is None else f"({figures.tokens_per_forward:.2f})"
    return f"{speedup} {forward}".strip() or "-"


def _legend(result: BenchResult, table: Table) -> str:
    """Return an explanation of the columns of a table of figures."""
    names = [column.heading for column in table.columns]
    return " ".join(_LEGEND[name] for name in names if name in _LEGEND).format(
        baseline=result.baseline,
        units="prompts" if result.config.batch == 1 else "batches",
        reference=result.reference or "the reference (none ran)",
    )


def _missing_columns(table: Table) -> list[str]:
    """Return a note about the columns that do not fit on a narrow console, if any."""
    number = 1 + len(MEASURES) - len(table.columns)
    if not number:
        return []
    return [
        f"{number} more columns need a terminal with at least {WIDE_COLUMNS} columns, or"
        " --markdown FILE."
    ]


def _notes(result: BenchResult) -> list[str]:
    notes = [f"{name}: skipped, {reason}." for name, reason in result.skipped.items()]
    notes += [cut_note(result.cut_prompts)] if result.cut_prompts else []
    if len(result.methods) == 1 and result.baseline not in (NONE, TRANSFORMERS):
        notes += [f"The speed-up compares {result.baseline} with itself. Add {NONE} to --drafters."]
    notes += verdict(result)
    reasons = dict.fromkeys(
        (guarantee.on, guarantee.reason) for guarantee in result.guarantees.values()
    )
    notes += [f"Batch invariance is {'on' if on else 'off'}: {reason}." for on, reason in reasons]
    divergences = result.divergences
    if not divergences:
        return notes
    gap = max(divergence.top_gap for divergence in divergences)
    count = (
        f"Answers that differ from those of {result.reference}: {len(divergences)}. At the first"
        f" different token, the target's two best logits differ by at most {gap:.3g} (in one"
        f" {result.dtype} forward pass)."
    )
    more = (
        [f"... and {len(divergences) - MAX_DIVERGENCES} more; --json FILE writes all of them."]
        if len(divergences) > MAX_DIVERGENCES
        else []
    )
    return [*notes, count, *map(_difference, divergences[:MAX_DIVERGENCES]), *more]


def _difference(divergence: Divergence) -> str:
    token = f"token {divergence.position} is {divergence.got} instead of {divergence.expected}"
    top = f"top logit {divergence.top_logit:.4g}, gap to the second {divergence.top_gap:.3g}"
    return f"{divergence.method}, {divergence.prompt}: {token}; {top}."


def _load(values: list[float]) -> str:
    return " ".join(f"{value:.2f}" for value in values) or "unknown"
