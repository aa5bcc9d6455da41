"""Implement the command `paceline record`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from paceline import demo
from paceline.cli.loading import build_llm
from paceline.cli.options import WITHOUT_MODEL, TargetModel
from paceline.cli.show import print_note
from paceline.core.sampling_params import SamplingParams
from paceline.util.config import require_range
from paceline.util.files import require_writable
from paceline.util.options import ModelOptions, PromptOptions

if TYPE_CHECKING:
    from paceline.replay.recorder import Recorded


def record(
    model: TargetModel = demo.NAME,
    /,
    *,
    out: Path = Path("answers.jsonl"),
    drafter: str = "prompt_lookup",
    batch: int = 8,
    top: int = 0,
    models: Annotated[ModelOptions, WITHOUT_MODEL] = ModelOptions(),
    selection: PromptOptions = PromptOptions(),
    sampling: SamplingParams = SamplingParams(),
) -> None:
    """Record a model's answers to prompts as JSON lines.

    You can use the file for replays, datastores and training. Prompt number n uses seed + n. You
    can interrupt the recording at any time. To resume the recording, run the same command again.

    Example: paceline record smollm2 --prompts prompts.jsonl --out answers.jsonl

    Args:
        out: Write the answers to this file as JSON lines. If the file is unfinished, recording
            resumes.
        drafter: Drafter spec of the form name:key=value,key=value; see `paceline drafters`. The
            drafter affects only the speed.
        batch: Number of prompts answered and written together; at least 1.
        top: Number of most likely tokens to record per position, in a second file; from 0 to 64;
            0 records none. To replay auto or token_recycling later, record the top 8 tokens.
    """
    require_range("record", "batch", batch, 1)
    require_writable(out)
    from paceline.replay.recorder import RecordOptions, encode_prompts, record_answers
    from paceline.report.prompts import cut_note, load_prompts

    prompts = load_prompts(selection.prompts, selection.limit, selection.every)
    llm = build_llm(replace(models, model=model), drafter, max_batch=batch)
    questions = encode_prompts(prompts, llm, sampling.max_new_tokens)
    try:
        result = record_answers(
            out,
            llm,
            questions,
            sampling,
            RecordOptions(batch, model, drafter, top),
            progress=True,
        )
    except KeyboardInterrupt:
        print_note(
            f"interrupted; {out} holds the finished batches; run the same command again to resume"
        )
        raise
    if result.cut:
        print_note(cut_note(result.cut))
    _report(result, out)


def _report(result: Recorded, out: Path) -> None:
    """Print how many answers were recorded, and at what speed."""
    if not result.new:
        print_note(f"{out} is finished: all {result.count} answers exist")
        return
    speed = (
        f"{result.new / result.seconds:.2f} answers/s, {result.tokens / result.seconds:.1f}"
        " tokens/s"
    )
    before = (
        f", {result.count - result.new} of them recorded earlier"
        if result.new < result.count
        else ""
    )
    print_note(f"wrote {out}: {result.count} answers{before}; {speed}")
