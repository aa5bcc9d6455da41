"""Reports of a run: a table on the console, Markdown, and JSON that can be read back."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence as Seq
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from paceline.bench.document import read_document, write_document
from paceline.bench.environment import Environment
from paceline.bench.result import BenchResult, Call, Counts, Divergence, Figures, Row
from paceline.bench.settings import BenchConfig
from paceline.metrics import Timing

SCHEMA = 1
KIND = "paceline bench"
_BY_CATEGORY = "Speed-up (tokens per forward) by category:"
_SHOWN = 5  # divergences listed one by one
_HEADINGS = ("method", "tokens/s", "speed-up", "median", "CPU time", "tokens/ forward", "accepted/ draft", "accepted",
             "fed/ step", "target", "draft", "over- head", "equal")  # fmt: skip
_NARROW = (0, 1, 2, 3, 5, 6, 12)  # the columns for consoles of less than _WIDE characters
_WIDE = 124
_LEGEND = (
    "speed-up: tokens/s over those of {baseline}; median: of that ratio over {units}; CPU time: that ratio in processor time,"
    " which other jobs on the machine disturb less. tokens/forward: plain decoding is 1. accepted/draft: tokens kept per tree;"
    " accepted: share of drafted tokens kept; fed/step: tokens per target forward. target, draft, overhead: shares of the time."
    " equal: answers with exactly the tokens of {reference}."
)


def print_table(result: BenchResult, console: Console | None = None) -> None:
    """Show the figures, per-category speed-ups and what differed. Default console: standard output."""
    console = console or Console(highlight=False)
    console.print(escape(_setting(result)), style="bold")
    shown = range(len(_HEADINGS)) if console.width >= _WIDE else _NARROW
    rows = [_cells(figures) for figures in result.figures()]
    console.print(_rich_table([_HEADINGS[i] for i in shown], [[row[i] for i in shown] for row in rows]))
    if len(result.categories) > 1:
        console.print(f"\n{_BY_CATEGORY}")
        console.print(_rich_table(*_category_table(result)), "")
    for line in [_legend(result), *_notes(result)]:
        console.print(escape(line), style="dim")


def markdown(result: BenchResult) -> str:
    """The run as a Markdown section: setting, tables, notes, the command that repeats it."""
    environment = result.environment
    lines = [
        f"### {result.target}, batch {result.config.batch}",
        "",
        f"{_setting(result)}.",
        "",
        *_markdown_table(_HEADINGS, [_cells(figures) for figures in result.figures()]),
        "",
    ]
    if len(result.categories) > 1:
        lines += [_BY_CATEGORY, "", *_markdown_table(*_category_table(result)), ""]
    lines += [f"{_legend(result)}", "", *(f"- {note}" for note in _notes(result))]
    changed = " with local changes" if environment.modified else ""
    versions = ", ".join(f"{name} {version}" for name, version in environment.versions.items())
    lines += [
        f"- {environment.date}, commit {environment.commit or 'unknown'}{changed}; {versions}; load average"
        f" {_load(environment.load_start)} at the start, {_load(environment.load_end)} at the end.",
        "",
        "```",
        result.config.command(),
        "```",
        "",
    ]
    return "\n".join(lines)


def write_json(result: BenchResult, path: str | Path) -> None:
    """Write everything a run left; the file appears whole or not at all.

    Raises:
        ConfigError: the file cannot be written.
    """
    summary = {"all": result.figures(), "categories": {name: result.figures(name) for name in result.categories}}
    scaled = bool(result.config.cost_scale or result.config.draft_cost_scale)
    content = {
        "complete": result.complete,
        "labels": {"target": result.target, "draft": result.draft, "cost_scaled": scaled},
        "command": result.config.command(),
        "summary": _plain(summary),
        **{field.name: _plain(getattr(result, field.name)) for field in dataclasses.fields(result)},
    }
    write_document(path, KIND, SCHEMA, content)


def read_json(path: str | Path) -> BenchResult:
    """A result from what `write_json` wrote.

    Raises:
        ConfigError: not such a file, or one of another schema.
    """
    document = read_document(path, KIND, SCHEMA)
    values = {field.name: document[field.name] for field in dataclasses.fields(BenchResult)}
    values["config"] = BenchConfig(**values["config"])
    values["environment"] = Environment(**values["environment"])
    values["methods"] = tuple(values["methods"])
    values["calls"] = tuple(map(_call, values["calls"]))
    values["divergences"] = tuple(Divergence(**one) for one in values["divergences"])
    return BenchResult(**values)


def _call(values: dict[str, Any]) -> Call:
    rows = tuple(Row(**{**row, "counts": row["counts"] and Counts(**row["counts"])}) for row in values["rows"])
    return Call(**{**values, "timing": values["timing"] and Timing(**values["timing"]), "rows": rows})


def _plain(value: Any) -> Any:
    """Dataclasses as dictionaries, through all containers."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return value


def setting_parts(result: BenchResult) -> list[str]:
    """What was run where, in short pieces: models, arithmetic, requests, hardware."""
    config = result.config
    count = len({(call.unit, row.prompt) for call in result.calls for row in call.rows})
    sampled = "greedy" if config.sampling().greedy else f"temperature {config.temperature:g}"
    parts = [f"target model: {result.target}"]
    parts += [f"draft model: {result.draft}"] if result.draft else []
    parts += [result.dtype, f"batch {config.batch}", sampled, f"{count} prompts", f"up to {config.max_new_tokens} new tokens"]
    parts += [f"{config.repeats} repeats"] if config.repeats > 1 else []
    parts += [f"trees shared by {config.lookahead_parallel} ranks (fed: the busiest)"] if config.lookahead_parallel else []
    parts += [result.environment.hardware]
    return parts if result.complete else [*parts, "PARTIAL: interrupted"]


def _setting(result: BenchResult) -> str:
    return "; ".join(setting_parts(result))


def _legend(result: BenchResult) -> str:
    units = "prompts" if result.config.batch == 1 else "batches"
    return _LEGEND.format(baseline=result.baseline, units=units, reference=result.reference or "the reference (none ran)")


def _notes(result: BenchResult) -> list[str]:
    notes = [f"{name}: skipped, {reason}." for name, reason in result.skipped.items()]
    if not result.divergences:
        return notes
    gap = max(one.top_gap for one in result.divergences)
    notes.append(
        f"Answers that differ from those of {result.reference}: {len(result.divergences)}. At the first differing token the"
        f" target's two best logits lie at most {gap:.3g} apart (one forward in {result.dtype})."
    )
    for one in result.divergences[:_SHOWN]:
        notes.append(
            f"{one.method}, {one.prompt}: token {one.position} is {one.got} for {one.expected}; top logit {one.top_logit:.4g},"
            f" gap to the second {one.top_gap:.3g}."
        )
    if len(result.divergences) > _SHOWN:
        notes.append(f"... and {len(result.divergences) - _SHOWN} more, in the JSON file.")
    return notes


def _cells(figures: Figures) -> list[str]:
    equal = f"{figures.equal}/{figures.compared}" if figures.compared else "-"
    return [
        figures.method,
        _number(figures.tokens_per_second, ".1f"),
        _number(figures.speedup, ".2f"),
        _number(figures.speedup_median, ".2f"),
        _number(figures.cpu_speedup, ".2f"),
        _number(figures.tokens_per_forward, ".2f"),
        _number(figures.accepted_per_draft, ".2f"),
        _number(figures.acceptance_rate, ".0%"),
        _number(figures.fed_per_step, ".1f"),
        _number(figures.target_share, ".0%"),
        _number(figures.draft_share, ".0%"),
        _number(figures.overhead_share, ".1%"),
        equal,
    ]


def _category_table(result: BenchResult) -> tuple[list[str], list[list[str]]]:
    columns = {name: result.figures(name) for name in result.categories}
    rows = [
        [method, *(_category_cell(column[place]) for column in columns.values())] for place, method in enumerate(result.methods)
    ]
    return ["method", *columns], rows


def _category_cell(figures: Figures) -> str:
    speedup = "" if figures.speedup is None else f"{figures.speedup:.2f}"
    forward = "" if figures.tokens_per_forward is None else f"({figures.tokens_per_forward:.2f})"
    return f"{speedup} {forward}".strip() or "-"


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _load(values: list[float]) -> str:
    return " ".join(f"{value:.2f}" for value in values) or "unknown"


def _rich_table(headings: Seq[str], rows: list[list[str]]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for place, heading in enumerate(headings):
        table.add_column(heading.replace(" ", "\n"), justify="right" if place else "left", no_wrap=True, overflow="fold")
    for row in rows:
        table.add_row(*map(escape, row))
    return table


def _markdown_table(headings: Seq[str], rows: list[list[str]]) -> list[str]:
    def line(cells: Seq[str]) -> str:
        return "| " + " | ".join(cells) + " |"

    titles = [heading.replace("/ ", "/").replace("- ", "") for heading in headings]
    return [line(titles), "|---|" + "---:|" * (len(titles) - 1), *(line([f"`{row[0]}`", *row[1:]]) for row in rows)]
