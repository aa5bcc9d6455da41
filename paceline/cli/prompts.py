"""Implement the command `paceline prompts`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.cli.loading import build_llm
from paceline.cli.show import print_note
from paceline.core.request import SamplingParams
from paceline.util.config import require_range
from paceline.util.files import require_writable, write_atomically
from paceline.util.options import ModelOptions

if TYPE_CHECKING:
    from paceline.replay.made_up import MadeUp


def prompts(
    *,
    out: Path = Path("prompts.jsonl"),
    count: int = 1000,
    max_new_tokens: int = 96,
    temperature: float = 1.0,
    top_p: float = 1.0,
    seed: int = 0,
    batch: int = 32,
    models: ModelOptions = ModelOptions(),
) -> None:
    """Generate user prompts with a chat model, as input of `paceline record`.

    The model continues its chat template where the user's turn begins (Magpie, Xu et al. 2024). If
    interrupted, the command writes the prompts so far.

    Args:
        out: File for the prompts, JSON lines.
        count: Number of different prompts to generate.
        max_new_tokens: Maximum tokens per prompt; longer ones are discarded.
        temperature: Sampling temperature; above 0.
        top_p: Nucleus sampling; from 0 to 1, 1 disables it.
        seed: Random seed; text number n uses seed + n.
        batch: Number of texts generated together; at least 1.
    """
    require_writable(out)
    require_range("prompts", "batch", batch, 1)
    params = SamplingParams(
        max_new_tokens=max_new_tokens, temperature=temperature, top_p=top_p, seed=seed
    )
    from paceline.replay.made_up import MadeUp, make_up

    llm = build_llm(models, "none", max_batch=batch)
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
