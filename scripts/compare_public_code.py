#!/usr/bin/env python3
"""Tokens per target forward (prefill counted) of drafters on three prompt sets, by the convention
of the runs of public code.

Greedy, float32, 96 new tokens, end-of-sequence ignored, chat template; the first 40 prompts of
humaneval.jsonl and gsm8k.jsonl and every 9th of spec_bench.jsonl; a prompt of more than 900 tokens
keeps its first 4 and last 896.

python scripts/compare_public_code.py ../shared lookahead:window=7,guesses=7,prompt_pool=false [more
drafters]
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
    """Token ids of one set."""
    lines = (folder / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()[SETS[name]]
    ids = [
        llm.chat_prompt([{"role": "user", "content": json.loads(line)["turns"][0]}])
        for line in lines
    ]
    return [one if len(one) <= LONGEST else one[:HEAD] + one[HEAD - LONGEST :] for one in ids]


def main(shared: Path, specs: list[str]) -> None:
    """Print a line of Markdown per drafter: tokens per forward (tokens fed per forward, draft
    forwards per new token).
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
