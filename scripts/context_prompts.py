"""Write prompts of given lengths, for benchmarks by context length.

    python scripts/context_prompts.py prompts.jsonl --texts spec_bench.jsonl --tokens 200 1000 4000
    --each 3

Each prompt joins questions from the file, and ends with a request for the main points. The prompt's
category is "context N".
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path

from paceline.cli.loading import load_tokenizer

QUESTION = "\n\nSum up the main points of the text above in a short list."


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--texts", type=Path, required=True)
    parser.add_argument("--tokens", type=int, nargs="+", default=[200, 1000, 4000])
    parser.add_argument("--each", type=int, default=3)
    parser.add_argument("--model", default="smollm2")
    arguments = parser.parse_args()
    tokenizer = load_tokenizer(arguments.model)
    texts = [json.loads(line)["turns"][0] for line in arguments.texts.open(encoding="utf-8")]
    rng = random.Random(0)
    with arguments.out.open("w", encoding="utf-8") as out:
        for size in arguments.tokens:
            for number in range(arguments.each):
                ids: list[int] = []
                while len(ids) < size:
                    ids += tokenizer(rng.choice(texts) + "\n\n")["input_ids"]
                turn = tokenizer.decode(ids[:size]) + QUESTION
                row = {
                    "id": f"context-{size}/{number}",
                    "category": f"context {size}",
                    "turns": [turn],
                }
                out.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
