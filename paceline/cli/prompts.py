"""The command `paceline prompts`: prompts that a model makes up itself."""

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
    """Let a chat model make up prompts, for record, where nobody has collected its users'.

    It goes on where its chat template has a user begin (Magpie, Xu et al. 2024). Interrupt it: the
    prompts so far are written.

    Args:
        out: file of the prompts, JSON lines.
        count: prompts to make up, all different.
        max_new_tokens: most tokens of a prompt; longer ones are left out.
        temperature: of the sampling, above 0.
        top_p: likewise.
        seed: likewise; text number n has seed + n.
        batch: texts written together.
    """
    require_writable(out)
    require_range("prompts", "batch", batch, 1)
    params = SamplingParams(
        max_new_tokens=max_new_tokens, temperature=temperature, top_p=top_p, seed=seed
    )
    from paceline.replay.made_up import MadeUp, make_up

    llm = build_llm(models, "none", max_batch=batch)
    made = MadeUp([], 0)
    try:
        for found in make_up(llm, count, params, batch, progress=True):
            made = found
    except KeyboardInterrupt:
        print_note("interrupted")
        if made.prompts:
            _write(out, made)
        raise
    _write(out, made)


def _write(out: Path, made: MadeUp) -> None:
    lines = [{"id": one.id, "category": one.category, "turns": [one.text]} for one in made.prompts]
    write_atomically(
        out, "".join(f"{json.dumps(line, ensure_ascii=False)}\n" for line in lines).encode()
    )
    left_out = made.tries - len(made.prompts)
    print_note(
        f"wrote {out}: {len(made.prompts)} prompts; {left_out} others were too long, empty or"
        " there already"
    )
