"""Print the time of a forward pass of SmolLM2-135M after 300 tokens, by number of rows.

The pass uses bfloat16 and one thread, and includes the LM head and batch-invariant attention. The
time is the minimum of ten rounds.

    python scripts/forward_times.py [ROWS ...]
"""

from __future__ import annotations

import sys
from functools import partial

import torch

from paceline import LLM
from paceline.core.request import Request
from paceline.core.sampling_params import SamplingParams
from paceline.core.tree import DraftTree
from paceline.invariance.forward_cost import run_forward
from paceline.util.stopwatch import Stopwatch

_CONTEXT, _ROUNDS = 300, 10
_ROWS = (1, 4, 8, 10, 16, 17, 24, 32)


def main() -> None:
    """Measure and print."""
    torch.set_num_threads(1)
    counts = [int(text) for text in sys.argv[1:]] or list(_ROWS)
    model = LLM("smollm2", "none", dtype="bfloat16").model.apart()
    request = Request([place % 7 for place in range(_CONTEXT)], SamplingParams())
    model.open(request)
    model.feed([request])
    request.token_ids.append(1)
    stopwatch = Stopwatch(model.device)
    best = dict.fromkeys(counts, float("inf"))
    for _ in range(_ROUNDS):
        for count in counts:  # by turns: all in the same weather
            tree = DraftTree.chain([place % 7 for place in range(count - 1)])
            best[count] = min(
                best[count], stopwatch.seconds(partial(run_forward, model, request, tree))
            )
    print(
        "  ".join(f"{count}: {best[count] * 1e3:.1f}" for count in counts), "ms by number of rows"
    )


if __name__ == "__main__":
    main()
