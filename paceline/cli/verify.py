"""The command `paceline verify`: is it lossless here, on this model, this machine, these prompts?"""

from __future__ import annotations

import dataclasses
import json as to_json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from rich.text import Text

from paceline.bench.settings import BenchConfig
from paceline.cli.bench import chosen_drafters
from paceline.cli.files import refuse_missing_folder
from paceline.cli.options import without
from paceline.cli.show import out, print_note

if TYPE_CHECKING:
    from paceline.bench.verify import Difference, DrafterVerdict

_NOT_ASKED = ("drafters", "baselines", "stop", "cost_scale", "draft_cost_scale", "repeats", "warmup", "max_seconds",
              "lookahead_parallel")  # fmt: skip


def verify(
    *,
    drafters: Annotated[list[str] | None, Parameter(name=("--drafter", "--drafters"))] = None,
    json: Path | None = None,
    config: Annotated[BenchConfig, without(*_NOT_ASKED)] = BenchConfig(),
) -> int:
    """Decode every prompt alone and without drafts, then in batches with each drafter; exit status 1 if any answer differs.

    The first difference of each drafter is shown with the logits of both tokens on both sides, and their bits.
    Prompt number n is answered with seed + n.

    Args:
        drafters: a drafter spec; repeat it, or separate with spaces or commas; default: all that run with what is there.
        json: write the results here.
    """
    refuse_missing_folder(json)
    config = replace(config, drafters=chosen_drafters(drafters, config.models), baselines=())
    from paceline.bench.verify import run_verify

    result = run_verify(config, _print_verdict)
    out.print(
        Text(f"{result.differing} of {result.answers} answers differ: {result.model}, {result.dtype}, batch {result.batch}")
    )
    proof = "on" if result.invariance.on else "off"
    out.print(Text(f"batch invariance is {proof}: {result.invariance.reason}"))
    if json is not None:
        text = to_json.dumps({**dataclasses.asdict(result), "differing": result.differing, "answers": result.answers}, indent=1)
        json.write_text(text + "\n", encoding="utf-8")
        print_note(f"wrote {json}")
    return 1 if result.differing else 0


def _print_verdict(verdict: DrafterVerdict) -> None:
    figures = f"{verdict.tokens} tokens, {verdict.accepted} accepted drafts, {verdict.tokens_per_forward:.2f} tokens per forward"
    if not verdict.answers:
        out.print(
            Text(f"{verdict.drafter}: draws tokens of its own, so not the text but its distribution is the same; {figures}")
        )
        return
    style = "red" if verdict.differing else ""
    out.print(Text(f"{verdict.drafter}: {verdict.differing} of {verdict.answers} answers differ; {figures}", style=style))
    if verdict.first is not None:
        _print_difference(verdict.first)


def _print_difference(first: Difference) -> None:
    names = [f"{token} {text!r}" for token, text in zip(first.tokens, first.texts, strict=True)]
    out.print(Text(f"  prompt {first.prompt}, token {first.position}: {names[0]} without drafts, {names[1]} with"))
    for side, logits in (("without drafts", first.plain), ("with drafts", first.drafted)):
        shown = ", ".join(f"{logit.value:.9g} ({logit.bits})" for logit in logits)
        out.print(Text(f"  their logits {side}: {shown}"))
