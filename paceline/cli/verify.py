"""Implement the command `paceline verify`."""

from __future__ import annotations

import dataclasses
import json as to_json
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rich.console import Console
from rich.text import Text

from paceline import demo
from paceline.bench.settings import BenchConfig
from paceline.cli.bench import chosen_drafters
from paceline.cli.files import ResultFiles
from paceline.cli.options import MethodOptions, TargetModel, without
from paceline.cli.show import INTERRUPTED, err, out, print_note
from paceline.core.settings import PREFILL_CHUNK
from paceline.drafters import PLAIN
from paceline.errors import ConfigError
from paceline.report.prompts import cut_note
from paceline.util.config import parse_spec
from paceline.util.files import STANDARD_OUTPUT, write_atomically
from paceline.util.options import changed

if TYPE_CHECKING:
    from paceline.bench.verify_result import Difference, DrafterVerdict, VerifyResult

_UNUSED_OPTIONS = (
    "model",
    "drafters",
    "baselines",
    "stop",
    "cost_scale",
    "draft_cost_scale",
    "repeats",
    "warmup",
    "max_seconds",
    "lookahead_parallel",
    "batch",
)


def verify(
    model: TargetModel = demo.NAME,
    /,
    *,
    methods: Annotated[MethodOptions, without("baselines")] = MethodOptions(),
    batch: list[str] | None = None,
    prefill_chunk: list[str] | None = None,
    files: Annotated[ResultFiles, without("png", "markdown")] = ResultFiles(),
    config: Annotated[BenchConfig, without(*_UNUSED_OPTIONS)] = BenchConfig(),
) -> int:
    """Check that drafters return the same answers as plain decoding.

    The exit status is 1 if any answer differs.

    Each prompt is first decoded alone without drafts, and then in batches with each drafter. If an
    answer differs, the report shows the two tokens at the first difference. For each of them, it
    shows the logit with drafts and the logit without drafts. The target verifies all draft tokens,
    even those that probably cost more time than they save, unless a spec contains `budget=true`.
    Prompt number n uses seed + n. If interrupted, the command reports the results so far.

    Example: paceline verify demo --drafter auto --batch 1,8 --limit 4

    Args:
        batch: Maximum number of prompts answered together; at least 1. To test several values,
            repeat the option, or separate the values by spaces or commas. Default: 1.
        prefill_chunk: Maximum number of prompt tokens per forward pass; at least 1. To test several
            values, repeat the option, or separate the values by spaces or commas. Default: 512.
    """
    batches, chunks = (
        _numbers("batch", batch, 1),
        _numbers("prefill_chunk", prefill_chunk, PREFILL_CHUNK),
    )
    config = changed(config, model=model)
    drafters = chosen_drafters(methods.drafters, config.models)
    config = replace(config, drafters=drafters, baselines=())
    _require_difference(drafters, batches, chunks)
    from paceline.bench.verify import run_verify

    console = err if files.json == STANDARD_OUTPUT else out
    result = run_verify(config, partial(_print_verdict, console), batches, chunks, progress=True)
    _print_summary(console, result)
    files.write(partial(_write_json, result), lambda path: None, lambda picture: "")
    if not result.complete:
        print_note(
            f"interrupted; {len(result.verdicts)} of {result.runs} drafters and batches were"
            " finished"
        )
    if result.differing:
        return 1
    return 0 if result.complete else INTERRUPTED


def _require_difference(
    drafters: Sequence[str], batches: Sequence[int], chunks: Sequence[int]
) -> None:
    """Raise an error if plain decoding would only be compared with itself."""
    is_plain = {parse_spec(spec)[0] for spec in drafters} == {PLAIN}
    if is_plain and (list(batches), list(chunks)) == ([1], [PREFILL_CHUNK]):
        raise ConfigError(
            f"verify: {PLAIN!r} alone compares plain decoding with itself. Add a drafter to"
            " --drafters, or pass --batch 1,8."
        )


def _print_summary(console: Console, result: VerifyResult) -> None:
    differing = (
        f"{result.differing} of {result.answers} answers differ: {result.model}, {result.dtype},"
        f" {result.prompts} prompts"
    )
    console.print(Text(differing))
    if result.weights:
        console.print(Text(f"weights: {result.weights}"))
    proof = "on" if result.invariance.on else "off"
    console.print(Text(f"batch invariance is {proof}: {result.invariance.reason}"))
    if result.cut_prompts:
        console.print(Text(cut_note(result.cut_prompts)))


def _numbers(name: str, words: list[str] | None, default: int) -> list[int]:
    """Parse the positive integers of an option, and drop duplicates."""
    numbers = list(
        dict.fromkeys(
            word for text in words or [str(default)] for word in re.split(r"[\s,]+", text.strip())
        )
    )
    if not all(word.isdecimal() and int(word) > 0 for word in numbers):
        option = name.replace("_", "-")
        raise ConfigError(
            f"\0verify: {name}\0: got {' '.join(words or ())!r}; expected positive integers. Write"
            f" --{option} 1,8."
        )
    return [int(word) for word in numbers]


def _write_json(result: VerifyResult, path: Path) -> None:
    # model modules cannot be written as JSON
    plain = replace(result, invariance=replace(result.invariance, products=None))
    sums = {"differing": result.differing, "answers": result.answers, "complete": result.complete}
    text = to_json.dumps({**dataclasses.asdict(plain), **sums}, indent=1)
    write_atomically(path, f"{text}\n".encode())


def _print_verdict(console: Console, verdict: DrafterVerdict) -> None:
    statistics = (
        f"{verdict.tokens} tokens, {verdict.accepted} accepted drafts,"
        f" {verdict.tokens_per_forward:.2f} tokens per forward"
        f"{' (draft budget off)' * verdict.budget_off}"
    )
    name = f"{verdict.drafter}, batch {verdict.batch}, chunks of {verdict.prefill_chunk}"
    if not verdict.answers:
        line = (
            f"{name}: samples its own drafts, so only the distribution is the same, not the text;"
            f" {statistics}"
        )
        console.print(Text(line))
        return
    style = "red" if verdict.differing else ""
    console.print(
        Text(
            f"{name}: {verdict.differing} of {verdict.answers} answers differ; {statistics}",
            style=style,
        )
    )
    if verdict.first is not None:
        _print_difference(console, verdict.first)


def _print_difference(console: Console, first: Difference) -> None:
    names = [f"{token} {text!r}" for token, text in zip(first.tokens, first.texts, strict=True)]
    console.print(
        Text(
            f"  prompt {first.prompt}, token {first.position}: {names[0]} without drafts,"
            f" {names[1]} with"
        )
    )
    for side, logits in (("without drafts", first.plain), ("with drafts", first.drafted)):
        shown = ", ".join(f"{logit.value:.9g} ({logit.bits})" for logit in logits)
        console.print(Text(f"  their logits {side}: {shown}"))
