"""Write prompts of random tokens, for benchmarks on unpredictable text.

    python scripts/random_prompts.py prompts.jsonl --count 64 --tokens 100

The category of these prompts is "random".
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path

from paceline.cli.loading import load_tokenizer


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--count", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=100)
    parser.add_argument("--model", default="smollm2")
    arguments = parser.parse_args()
    tokenizer = load_tokenizer(arguments.model)
    usual = sorted(set(tokenizer.get_vocab().values()) - set(tokenizer.all_special_ids))
    rng = random.Random(0)
    with arguments.out.open("w", encoding="utf-8") as out:
        for number in range(arguments.count):
            turn = tokenizer.decode(rng.choices(usual, k=arguments.tokens))
            out.write(
                json.dumps({"id": f"random/{number}", "category": "random", "turns": [turn]}) + "\n"
            )


if __name__ == "__main__":
    main()
