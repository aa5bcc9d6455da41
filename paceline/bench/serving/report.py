"""Reports of a load bench: a table on the console, Markdown, and JSON that can be read back."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.markup import escape

from paceline.bench.report import provenance
from paceline.bench.serving.result import LoadFigures, ServingResult, percentile
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
    "of plain: tokens/s over those of plain decoding under the same load. latency: users /"
    " (tokens/s), with the prompts' share."
    " first: ms to the first piece of an answer; gap: ms between pieces; token: ms between tokens,"
    " per answer on average; end:"
    " seconds to the last piece. overhead: share of the engine's time that is neither forward nor"
    " drafting. equal: answers that"
    " say what plain decoding said."
)
_NARROW = ("load", "drafter", "tokens/s", "of plain", "first p99", "gap p99", "end p99 s", "equal")
_WIDE = 140  # characters; narrower consoles have the columns above alone


def print_table(result: ServingResult, console: Console | None = None) -> None:
    """Show the figures. Default console: standard output."""
    console = console or Console(highlight=False)
    console.print(escape("; ".join(setting_parts(result))), style="bold")
    table = figures_table(result)
    (table if console.width >= _WIDE else table.only(_NARROW)).show(console)
    for line in [*notes(result), _LEGEND]:
        console.print(escape(line), style="dim")


def markdown(result: ServingResult, picture: str | None = None) -> str:
    """Return the run as a Markdown section: setting, table, notes, the command that repeats it.

    Args:
        picture: link to the drawing.
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
    """Write everything a run left; the file appears whole or not at all.

    Raises:
        ConfigError: the file cannot be written.
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
    """Read a result that `write_json` wrote.

    Raises:
        ConfigError: not such a file, one of another schema, or a damaged one.
    """
    return read_document(path, KIND)


def setting_parts(result: ServingResult) -> list[str]:
    """Return what was run where, in short pieces."""
    config = result.config
    way = "over HTTP" if config.load.transport == "http" else "asyncio calls"
    parts = [
        f"target model: {result.target}",
        result.dtype,
        way,
        "greedy",
        f"up to {config.max_new_tokens} new tokens",
    ]
    parts += ["the same bits in any batch" if result.invariant else "bits may depend on the batch"]
    parts += [f"{config.repeats} repeats"] if config.repeats > 1 else []
    parts += [result.environment.hardware]
    return parts if result.complete else [*parts, "PARTIAL: interrupted"]


def figures_table(result: ServingResult) -> Table:
    """Return the table of all drafters under all loads."""
    rows = [
        (
            f"{one.load.context}, {one.load.name}",
            one.drafter,
            *(getattr(one, name) for name in _MEASURES.values()),
            (one.equal, one.compared) if one.compared else None,
        )
        for one in result.figures()
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
    """Return what was measured besides, a sentence each."""
    found = []
    if result.turn is not None:
        one = result.turn
        found.append(
            f"Second turn of a chat, {one.before} tokens before it: first token after"
            f" {_ms(one.reused, 0.5)} with the first"
            f" turn's cache ({min(one.reused_tokens)} tokens of it), {_ms(one.afresh, 0.5)}"
            f" without ({max(one.afresh_tokens)}):"
            f" {one.ratio:.1f} times sooner (medians of {len(one.reused)})."
        )
    if result.intrusion is not None:
        gaps = result.intrusion
        found.append(
            f"Gaps of a stream: 99th percentile {_ms(gaps.alone, 0.99)} alone,"
            f" {_ms(gaps.beside, 0.99)} while prompts of"
            f" {gaps.tokens} tokens arrive ({gaps.begun} of them are begun): {gaps.ratio:.1f}"
            " times; longest"
            f" {_ms(gaps.alone, 1)} and {_ms(gaps.beside, 1)}."
        )
    if result.soak is not None:
        soak = result.soak
        sizes = [size / 1e6 for _, size in soak.resident]
        found.append(
            f"Soak of {soak.resident[-1][0] / 60:.1f} minutes: {soak.answers} answers,"
            f" {soak.aborted} left by their clients,"
            f" {soak.left_open} held by the engine at the end; memory from {min(sizes):.0f} to"
            f" {max(sizes):.0f} MB, last quarter"
            f" over second {soak.growth:.3f}."
        )
    return [*found, *_repeating(result), *_differing(result.figures())]


def _repeating(result: ServingResult) -> list[str]:
    """That a load was longer than the list of prompts, by which drafters that remember gain."""
    most = max((len(cell.answers) for cell in result.cells), default=0)
    prompts = max((len({one.prompt for one in cell.answers}) for cell in result.cells), default=0)
    return [
        f"A load has up to {most} requests of {prompts} prompts: drafters that remember answers"
        " gain by it."
    ] * (most > prompts)


def _differing(figures: list[LoadFigures]) -> list[str]:
    bad = [one for one in figures if one.equal < one.compared]
    return [
        f"{one.load.context}, {one.load.name}, {one.drafter}: {one.compared - one.equal} answers"
        " differ."
        for one in bad
    ]


def _ms(values: tuple[float, ...], share: float) -> str:
    return f"{1000 * percentile(values, share):.0f} ms"
