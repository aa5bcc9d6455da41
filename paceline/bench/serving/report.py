"""Report a load benchmark as a table, as Markdown, and as JSON."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.markup import escape

from paceline.bench.report import provenance
from paceline.bench.serving.report_settings import WIDE_COLUMNS
from paceline.bench.serving.result import LoadFigures, ServingResult
from paceline.report.documents import DocumentKind, read_document, write_document
from paceline.report.tables import Column, Table

KIND = DocumentKind("paceline bench --serve", 1, ServingResult)
_MEASURES: dict[Column, str] = {
    Column("tokens/s", ".1f"): "throughput",
    Column("of plain", ".2f"): "speedup",
    Column("latency ms", ".1f"): "latency",
    Column("first p50", ".0f"): "first_p50",
    Column("first p99", ".0f"): "first_p99",
    Column("gap p50", ".0f"): "gap_p50",
    Column("gap p99", ".0f"): "gap_p99",
    Column("token p50", ".1f"): "token_p50",
    Column("token p99", ".1f"): "token_p99",
    Column("end p50 s", ".2f"): "end_p50",
    Column("end p99 s", ".2f"): "end_p99",
    Column("over- head", ".1%"): "overhead",
}
_LEGEND = (
    "of plain: tokens/s divided by the value for plain decoding under the same load. latency:"
    " users / (tokens/s), including prefill. first: ms to the first chunk of an answer; gap: ms"
    " between chunks; token: mean ms between the tokens of an answer; end: seconds to the last"
    " chunk. overhead: share of the engine's time outside forward passes and drafting. equal:"
    " answers that match plain decoding."
)
_NARROW = ("load", "drafter", "tokens/s", "of plain", "first p99", "gap p99", "end p99 s", "equal")


def print_table(result: ServingResult, console: Console | None = None) -> None:
    """Print the figures to a console, by default standard output."""
    console = console or Console(highlight=False)
    console.print(escape("; ".join(setting_parts(result))), style="bold")
    table = figures_table(result)
    (table if console.width >= WIDE_COLUMNS else table.only(_NARROW)).show(console)
    for line in [*notes(result), _LEGEND]:
        console.print(escape(line), style="dim")


def markdown(result: ServingResult, picture: str | None = None) -> str:
    """Return the run as a Markdown section: settings, table, notes and command line.

    Args:
        result: Result of the run.
        picture: Link to the image file of the plot.
    """
    lines = [f"### {result.target} under load", "", f"{'; '.join(setting_parts(result))}.", ""]
    lines += [f"![Latency and cost under load]({picture})", ""] if picture else []
    lines += figures_table(result).markdown()
    lines += [
        _LEGEND,
        "",
        *(f"- {note}" for note in [*notes(result), f"{provenance(result.environment)}."]),
        "",
    ]
    return "\n".join([*lines, "```", result.config.command(), "```", ""])


def write_json(result: ServingResult, path: str | Path) -> None:
    """Write the complete result as JSON, atomically.

    Raises:
        ConfigError: The file cannot be written.
    """
    write_document(
        path,
        KIND,
        result,
        command=result.config.command(),
        summary=result.figures(),
        notes=notes(result),
    )


def read_json(path: str | Path) -> ServingResult:
    """Read a result written by `write_json`.

    Raises:
        ConfigError: The file does not exist, is damaged, or has a different schema.
    """
    return read_document(path, KIND)


def setting_parts(result: ServingResult) -> list[str]:
    """Return phrases that describe the setup: model, transport, requests and hardware."""
    config = result.config
    way = "over HTTP" if config.load.transport == "http" else "asyncio calls"
    parts = [
        f"target model: {result.target}",
        *([f"weights: {result.weights}"] if result.weights else []),
        result.dtype,
        way,
        "greedy",
        f"up to {config.max_new_tokens} new tokens",
    ]
    parts += [f"batches of up to {config.load.max_batch}"] if config.load.max_batch else []
    parts += ["the same bits in any batch" if result.invariant else "bits may depend on the batch"]
    parts += [f"{config.repeats} repeats"] if config.repeats > 1 else []
    parts += [result.environment.hardware]
    return parts if result.complete else [*parts, "PARTIAL: interrupted"]


def figures_table(result: ServingResult) -> Table:
    """Return a table with the results of every drafter under every load."""
    rows = [
        (
            f"{row.load.context}, {row.load.name}",
            row.drafter,
            *(getattr(row, name) for name in _MEASURES.values()),
            (row.equal, row.compared) if row.compared else None,
        )
        for row in result.figures()
    ]
    return Table.of(
        "",
        [
            Column("load"),
            Column("drafter", left=True, code=True),
            *_MEASURES,
            Column("equal", "{}/{}"),
        ],
        rows,
    )


def notes(result: ServingResult) -> list[str]:
    """Return notes about repeated prompts and differing answers."""
    return [*_repeating(result), *_differing(result.figures())]


def _repeating(result: ServingResult) -> list[str]:
    """Return a note if prompts repeat, which favours drafters that cache answers."""
    most = max((len(cell.answers) for cell in result.cells), default=0)
    prompts = max(
        (len({answer.prompt for answer in cell.answers}) for cell in result.cells), default=0
    )
    if most <= prompts:
        return []
    return [
        f"A load has up to {most} requests for only {prompts} prompts, which favours drafters"
        " that cache answers."
    ]


def _differing(figures: list[LoadFigures]) -> list[str]:
    differing = [row for row in figures if row.equal < row.compared]
    return [
        f"{row.load.context}, {row.load.name}, {row.drafter}: {row.compared - row.equal} answers"
        " differ."
        for row in differing
    ]
