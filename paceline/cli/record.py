"""The command `paceline record`: a model's own answers, for stores, calibrations, heads and
replays.
"""

from __future__ import annotations

from pathlib import Path

from paceline.cli.loading import build_llm
from paceline.cli.show import print_note
from paceline.core.request import SamplingParams
from paceline.util.config import require_range
from paceline.util.options import ModelOptions, PromptOptions


def record(
    *,
    out: Path = Path("answers.jsonl"),
    drafter: str = "prompt_lookup",
    batch: int = 8,
    top: int = 0,
    models: ModelOptions = ModelOptions(),
    selection: PromptOptions = PromptOptions(),
    sampling: SamplingParams = SamplingParams(),
) -> None:
    """Record a model's own answers to prompts, for replay, datastore, head record and the
    calibration of sssd.

    Prompt number n is answered with seed + n. Interrupt it at any time; the same command goes on.

    Args:
        out: file of the answers, JSON lines; an unfinished one is continued.
        drafter: name:key=value,key=value; see `paceline drafters`. It makes the answers sooner, not
            others.
        batch: prompts answered together, and written together.
        top: most likely tokens to keep at every place, in a file beside it; 8 for replays of auto
            and token_recycling.
    """
    require_range("record", "batch", batch, 1)
    from paceline.replay.recorder import RecordOptions, encode_prompts, record_answers
    from paceline.report.prompts import cut_note, load_prompts

    prompts = load_prompts(selection.prompts, selection.limit, selection.every)
    llm = build_llm(models, drafter, max_batch=batch)
    questions = encode_prompts(prompts, llm, sampling.max_new_tokens)
    try:
        made = record_answers(
            out,
            llm,
            questions,
            sampling,
            RecordOptions(batch, models.model, drafter, top),
            progress=True,
        )
    except KeyboardInterrupt:
        print_note(
            f"interrupted; {out} keeps the batches that were finished, and the same command goes on"
        )
        raise
    if made.cut:
        print_note(cut_note(made.cut))
    if not made.new:
        print_note(f"{out} is finished: all {made.count} answers were there")
        return
    speed = f"{made.new / made.seconds:.2f} answers/s, {made.tokens / made.seconds:.1f} tokens/s"
    before = f", {made.count - made.new} of them before" if made.new < made.count else ""
    print_note(f"wrote {out}: {made.count} answers{before}; {speed}")
