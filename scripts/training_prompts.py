"""Write the prompts whose answers train stores, calibrations, drafts and heads.

    python scripts/training_prompts.py prompts.jsonl --text ../shared/data/text
    paceline record smollm2 --dtype float32 --prompts prompts.jsonl --out answers.jsonl -n 128
    --drafter none --batch 32

The prompts come from chats under the MIT licence and from the Python standard library (PSF-2.0).
Their order is drawn by seed, so the first hundred contain all kinds. `--never` names files with
prompts to leave out, because they are measured on or already answered.
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path

from demo_pair_data import INSTRUCTIONS, Corpus, load_corpus

COUNTS = {
    "gsm8k": 340,
    "codegen": 320,
    "roleplay": 260,
    "toolformer": 40,
    "stubs": 320,
    "explain": 120,
    "passages": 200,
}
LONGEST = 6000  # characters


def questions(corpus: Corpus, category: str, count: int, rng: random.Random) -> list[str]:
    """Draw `count` different questions of a category."""
    if category == "passages":
        paragraphs = [answer for _, answer in corpus.chats["roleplay"] if len(answer) > 200]
        return [
            "\n\n".join(
                [*rng.sample(paragraphs, rng.choice([1, 2, 4, 8])), rng.choice(INSTRUCTIONS)]
            )
            for _ in range(count)
        ]
    if category == "explain":
        stubs = [stub + body for stub, body in corpus.chats["stubs"] if len(body) < LONGEST]
        return [
            f"Explain what this function does.\n\n```python\n{code}\n```"
            for code in rng.sample(stubs, count)
        ]
    found = list(
        dict.fromkeys(question for question, _ in corpus.chats[category] if len(question) < LONGEST)
    )
    drawn = rng.sample(found, count)
    if category == "stubs":
        return [rng.choice(["", "Complete this Python function.\n\n"]) + stub for stub in drawn]
    return drawn


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument(
        "--text", type=Path, required=True, help="folder of chats, JSON lines with messages"
    )
    parser.add_argument(
        "--never",
        type=Path,
        nargs="*",
        default=[],
        help="files of prompts that must not be among them",
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--times", type=float, default=1.0, help="so many times as many of each kind"
    )
    arguments = parser.parse_args()
    rng = random.Random(arguments.seed)
    corpus = load_corpus(arguments.text, rng)
    held_back = {
        turn.strip()
        for path in arguments.never
        for line in path.open()
        for turn in json.loads(line)["turns"]
    }
    rows = [
        {"id": f"{category}/{number}", "category": category, "turns": [question]}
        for category, count in COUNTS.items()
        for number, question in enumerate(
            questions(corpus, category, round(arguments.times * count), rng)
        )
        if question.strip() not in held_back
    ]
    rng.shuffle(rows)
    arguments.out.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    print(f"{len(rows)} prompts drawn; sources: {corpus.sources}")


if __name__ == "__main__":
    main()
