"""Measure the cost of batch invariance at several context lengths.

    python scripts/invariance_cost.py [--model smollm2] [--threads 1] [--rounds 9] [--json FILE]

The script writes docs/results/invariance-cost.json. From this file, `scripts/update_benchmarks.py`
generates the table of docs/concepts/batch-invariance.md.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from invariance_results import ContextCost, measure, table, write_cost

DEFAULT = Path(__file__).parent.parent / "docs" / "results" / "invariance-cost.json"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--dtypes", default="bfloat16,float32")
    parser.add_argument("--contexts", default="500,4000")
    parser.add_argument("--batches", default="1,8")
    parser.add_argument("--drafts", default="0,8")
    parser.add_argument("--json", type=Path, default=DEFAULT)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    batches, contexts, drafts = (
        [int(word) for word in words.split(",")]
        for words in (args.batches, args.contexts, args.drafts)
    )
    result = measure(
        args.model, args.dtypes.split(","), batches, contexts, drafts, args.rounds, show
    )
    write_cost(result, args.json)
    print("\n".join(table(result).markdown()))


def show(cost: ContextCost) -> None:
    print(
        f"{cost.dtype}, context {cost.context}, batch {cost.batch}, drafts {cost.drafts}:"
        f" {cost.speed:.3f}",
        flush=True,
    )


if __name__ == "__main__":
    main()
