"""Implement the command `paceline prompts`."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from paceline import demo
from paceline.cli.loading import build_llm
from paceline.cli.options import TargetModel, flattened, only
from paceline.cli.show import print_note
from paceline.core.sampling_params import SamplingParams
from paceline.util.config import require_range
from paceline.util.files import require_writable, write_atomically
from paceline.util.options import ModelOptions

if TYPE_CHECKING:
    from paceline.replay.made_up import MadeUp


@flattened("Sampling")
@dataclass(frozen=True, slots=True)
class PromptSampling:
    """Options for sampling prompts.

    Attributes:
        max_new_tokens: Maximum number of tokens per prompt; at least 1. Longer prompts are
            discarded.
        temperature: Sampling temperature; above 0.
        top_p: Probability mass for nucleus sampling; above 0, at most 1; 1 disables it.
        seed: Random seed; text number n uses seed + n.
    """

    max_new_tokens: int = 96
    temperature: float = 1.0
    top_p: float = 1.0
    seed: int = 0


def prompts(
    model: TargetModel = demo.NAME,
    /,
    *,
    out: Path = Path("prompts.jsonl"),
    count: int = 1000,
    batch: int = 32,
    sampling: PromptSampling = PromptSampling(),
    models: Annotated[
        ModelOptions, only("dtype", "device", "threads", "batch_invariant")
    ] = ModelOptions(),
) -> None:
    """Generate user prompts with a chat model, for `paceline record`.

    The model receives its chat template up to the start of the user's turn. The model then
    generates the user's message itself (Magpie, Xu et al. 2024). If interrupted, the command saves
    the prompts generated so far.

    Example: paceline prompts smollm2 --count 1000 --out prompts.jsonl

    Args:
        out: Write the prompts to this file as JSON lines.
        count: Number of different prompts to generate; at least 1.
        batch: Number of texts generated together; at least 1.
    """
    require_writable(out)
    require_range("prompts", "batch", batch, 1)
    params = SamplingParams(**asdict(sampling))
    from paceline.replay.made_up import MadeUp, make_up

    llm = build_llm(replace(models, model=model), "none", max_batch=batch)
    generated = MadeUp([], 0)
    try:
        for generated_so_far in make_up(llm, count, params, batch, progress=True):
            generated = generated_so_far
    except KeyboardInterrupt:
        print_note("interrupted")
        if generated.prompts:
            _write(out, generated)
        raise
    _write(out, generated)


def _write(out: Path, generated: MadeUp) -> None:
    lines = [
        {"id": prompt.id, "category": prompt.category, "turns": [prompt.text]}
        for prompt in generated.prompts
    ]
    write_atomically(
        out, "".join(f"{json.dumps(line, ensure_ascii=False)}\n" for line in lines).encode()
    )
    num_discarded = generated.tries - len(generated.prompts)
    print_note(
        f"wrote {out}: {len(generated.prompts)} prompts; {num_discarded} texts were too long,"
        " empty or duplicates"
    )
