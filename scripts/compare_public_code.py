#!/usr/bin/env python3
"""Count tokens per target forward pass of drafters, as the public code counts them.

The count includes the prefill. Decoding is greedy, in float32, with the chat template, for 96 new
tokens without end-of-sequence tokens. The prompts are the first 40 of humaneval.jsonl and of
gsm8k.jsonl, and every 9th of spec_bench.jsonl. From a prompt of more than 900 tokens, the script
keeps the first 4 and the last 896.

    python scripts/compare_public_code.py ../shared lookahead:window=7,guesses=7,prompt_pool=false
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

from paceline import LLM, SamplingParams
from paceline.drafters import entry
from paceline.model.loading import load_model
from paceline.util.config import split_spec

SETS = {"humaneval": slice(0, 40), "gsm8k": slice(0, 40), "spec_bench": slice(0, None, 9)}
LONGEST, HEAD = 900, 4
PARAMS = SamplingParams(max_new_tokens=96, ignore_eos=True)


def prompts(folder: Path, name: str, llm: LLM) -> list[list[int]]:
    """Return the token ids of one prompt set."""
    lines = (folder / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()[SETS[name]]
    ids = [
        llm.chat_prompt([{"role": "user", "content": json.loads(line)["turns"][0]}])
        for line in lines
    ]
    return [one if len(one) <= LONGEST else one[:HEAD] + one[HEAD - LONGEST :] for one in ids]


def main(shared: Path, specs: list[str]) -> None:
    """Print a Markdown row per drafter.

    The row has tokens per forward pass, computed rows per forward pass, and draft passes per
    new token.
    """
    torch.set_num_threads(1)
    target = load_model(shared / "models" / "target", "float32")
    print(f"| drafter | {' | '.join(SETS)} |\n|---|{'---:|' * len(SETS)}")
    for spec in specs:
        draft = (
            shared / "models" / "draft" if entry(split_spec(spec)[0]).needs_draft_model else None
        )
        llm = LLM(target, spec, draft, tokenizer=shared / "models" / "target", dtype="float32")
        cells = []
        for name in SETS:
            stats = [
                llm.generate([one], PARAMS)[0].stats
                for one in prompts(shared / "data" / "prompts", name, llm)
            ]
            tokens, forwards = (
                sum(getattr(one, field) for one in stats)
                for field in ("new_tokens", "target_forwards")
            )
            fed, drafted = (
                sum(sum(one.query_tokens) for one in stats),
                sum(one.draft_forwards for one in stats),
            )
            cells.append(f"{tokens / forwards:.3f} ({fed / forwards:.1f}, {drafted / tokens:.2f})")
        print(f"| `{spec}` | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
