"""Compare answers of packed GGUF models with those of the converted models, bit for bit.

    python scripts/compare_packed.py FILE.gguf [FILE.gguf ...] --prompts PROMPTS.jsonl --out OUT

The converted model answers each prompt without drafts. The packed model answers the prompts with
every drafter that needs no second model, in every batch size. The result counts the answers whose
token ids differ. It is written after each combination, and a second run continues it.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paceline import LLM

KIND = "paceline-packed-answers"
PLAIN = "none"


def compare(options: argparse.Namespace) -> None:
    """Compare all files, and print and store each count."""
    import torch

    from paceline.bench.environment import look_around

    result: dict[str, Any] = {"kind": KIND, "count": options.count, "rows": []}
    if options.out.exists():
        result = json.loads(options.out.read_text(encoding="utf-8"))
    done = {(row["file"], row["drafter"], row["batch"]) for row in result["rows"]}
    for file in options.files:
        wanted = [
            (drafter, batch)
            for batch in options.batches
            for drafter in options.drafters
            if (file.name, drafter, batch) not in done
        ]
        for row in _rows(file, wanted, options):
            result["rows"].append(row)
            result["environment"] = asdict(look_around(torch.device("cpu")))
            options.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
            print(json.dumps(row), flush=True)


def _rows(
    file: Path, wanted: list[tuple[str, int]], options: argparse.Namespace
) -> Iterator[dict[str, Any]]:
    """Yield the result of each combination of a file."""
    from paceline import LLM
    from paceline.report.prompts import encode, load_prompts

    largest = max(options.batches)
    reference = LLM(str(file), PLAIN, unpack=True, batch_invariant=True, max_batch=largest)
    prompts = [
        encode(prompt, reference.tokenizer)[: options.prompt_tokens]
        for prompt in load_prompts(options.prompts, 0, options.every)
    ][: options.limit]
    expected = _answers(reference, prompts, PLAIN, options.count)
    for drafter, batch in wanted:
        llm = LLM(str(file), drafter, unpack=False, batch_invariant=True, max_batch=batch)
        answers = _answers(llm, prompts, drafter, options.count)
        yield {
            "file": file.name,
            "drafter": drafter,
            "batch": batch,
            "answers": len(answers),
            "different": sum(map(list.__ne__, answers, expected)),
        }


def _answers(llm: LLM, prompts: list[list[int]], drafter: str, count: int) -> list[list[int]]:
    from paceline import SamplingParams

    params = SamplingParams(count, speculation=drafter)
    return [list(out.token_ids) for out in llm.generate(prompts, params)]


def main() -> None:
    """Parse the command line and compare."""
    from paceline.cli.demo import model_free

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="+", type=Path, help="GGUF files")
    parser.add_argument("--prompts", nargs="*", default=[], help="JSONL files")
    parser.add_argument("--every", type=int, default=1, help="use every n-th prompt of a file")
    parser.add_argument("--limit", type=int, default=200, help="prompts in all")
    parser.add_argument("--prompt-tokens", type=int, default=128, help="cut prompts at this length")
    parser.add_argument("--count", type=int, default=16, help="maximum tokens of an answer")
    parser.add_argument("--batches", type=int, nargs="+", default=[32, 8, 1])
    parser.add_argument("--drafters", nargs="+", default=list(model_free()))
    parser.add_argument("--out", type=Path, required=True, help="JSON file of the counts")
    compare(parser.parse_args())


if __name__ == "__main__":
    main()
