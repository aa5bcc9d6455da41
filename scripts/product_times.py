"""Print the time of all matrix products of SmolLM2-135M, by number of rows.

The products use bfloat16 and one thread. The time is the minimum of nine rounds.

    python scripts/product_times.py [ROWS ...]
"""

from __future__ import annotations

import sys
import time
from itertools import chain

import torch
from torch import Tensor

from paceline.cpu.linear.dispatch import product

_LAYERS, _ROUNDS = 30, 9
# of a layer, [out, in]
_SHAPES = ((576, 576), (192, 576), (192, 576), (576, 576), (1536, 576), (1536, 576), (576, 1536))
_HEAD = (49152, 576)
_ROWS = (1, 8, 12, 16, 20, 24, 28, 32, 36, 48, 64)


def main() -> None:
    """Measure and print."""
    torch.set_num_threads(1)
    counts = [int(text) for text in sys.argv[1:]] or list(_ROWS)
    weights = [torch.randn(shape).to(torch.bfloat16) for shape in chain(_SHAPES * _LAYERS, [_HEAD])]
    best = dict.fromkeys(counts, float("inf"))
    for _ in range(_ROUNDS):
        for count in counts:  # by turns: all in the same weather
            best[count] = min(best[count], _seconds(weights, count))
    print(
        "  ".join(f"{count}: {best[count] * 1e3:.1f}" for count in counts), "ms by number of rows"
    )


@torch.inference_mode()
def _seconds(weights: list[Tensor], count: int) -> float:
    rows = {
        inner: torch.randn(count, inner).to(torch.bfloat16)
        for inner in {weight.shape[1] for weight in weights}
    }
    start = time.perf_counter()
    for weight in weights:
        product(rows[weight.shape[1]], weight, None)
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
