"""Compare batch-invariant attention and SDPA with the memory bandwidth, as a Markdown table.

    python scripts/attention_roofline.py [--threads N] [--dtypes float32,bfloat16]

The shapes are those of SmolLM2-135M: 9 query heads and 3 key heads of size 64. The queries are a
chain that follows the cached context. Each call reads keys and values that are in no processor
cache, because a model reads the weights of a layer between two attention calls. With one thread,
the script measures CPU time, so that other processes have little effect.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn
from transformers import AttentionInterface

from paceline.attention import BY_POSITION, BY_SDPA, AttentionMetadata, AttentionState
from paceline.attention.forward import STATE
from paceline.core.request import Request
from paceline.core.sampling_params import SamplingParams
from paceline.core.tree import DraftTree
from paceline.model.padded_batch import lay_out

HEADS, KEY_HEADS, DIM = 9, 3, 64
CONTEXTS, QUERIES = (256, 1024, 4096), (1, 8, 32)
COLD = 1 << 28  # bytes that are read before the same ones are read again
SLICE = 1 << 23  # bytes that are read at a time to measure the memory
SECONDS = 1.0  # for each figure


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--dtypes", default="float32,bfloat16")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    memory = bandwidth()
    print(f"Memory: {memory / 1e9:.1f} GB/s read by {args.threads} thread(s).\n")
    print("| dtype | context | queries | MB read | ms | GB/s | of memory | GFLOP/s | SDPA ms |")
    print("|---|---|---|---|---|---|---|---|---|")
    for dtype in args.dtypes.split(","):
        for context in CONTEXTS:
            for queries in QUERIES:
                print(row(getattr(torch, dtype), context, queries, memory), flush=True)


def bandwidth() -> float:
    """Measure the memory bandwidth in bytes per second, by a sum that exceeds all caches."""
    parts = torch.ones(COLD // 4).chunk(COLD // SLICE)
    return SLICE / fastest(lambda turn: parts[turn % len(parts)].sum())


@torch.inference_mode()
def row(dtype: torch.dtype, context: int, queries: int, memory: float) -> str:
    request = Request([1] * (context + 1), SamplingParams())
    request.cached, request.slot = context, 0
    layout = lay_out(
        [request], [DraftTree([1] * (queries - 1), list(range(-1, queries - 2)))], prefill_chunk=1
    )
    keys = context + queries
    size = 2 * KEY_HEADS * keys * DIM * dtype.itemsize
    layers = [
        [torch.randn(1, KEY_HEADS, keys, DIM).to(dtype) for _ in range(2)]
        for _ in range(max(2, COLD // size))
    ]
    query = torch.randn(1, queries, HEADS, DIM).to(dtype).transpose(1, 2)
    mask = None if layout.trivial else torch.from_numpy(layout.visible_mask(keys))[:, None]
    order = AttentionMetadata.from_columns(
        layout.cached, layout.cache_positions, layout.positions, layout.padding
    )
    module = nn.Module()
    setattr(module, "num_key_value_groups", HEADS // KEY_HEADS)  # noqa: B010 (mypy wants modules there)

    def attend(name: str) -> Callable[[int], Tensor]:
        function = AttentionInterface()[name]
        return lambda turn: function(
            module, query, *layers[turn % len(layers)], mask, scaling=DIM**-0.5
        )[0]

    setattr(module, STATE, AttentionState(metadata=order))
    ours, theirs = fastest(attend(BY_POSITION)), fastest(attend(BY_SDPA))
    flops = 4 * HEADS * queries * keys * DIM
    return (
        f"| {str(dtype).removeprefix('torch.')} | {context} | {queries} | {size / 1e6:.2f} |"
        f" {ours * 1e3:.3f} | {size / ours / 1e9:.1f} | {size / ours / memory:.0%} |"
        f" {flops / ours / 1e9:.0f} | {theirs * 1e3:.3f} |"
    )


def fastest(call: Callable[[int], object]) -> float:
    """Return the seconds of the fastest call.

    The function repeats calls for `SECONDS`, and at least ten times.
    """
    call(0)
    clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
    best, end, turn = float("inf"), clock() + SECONDS, 0
    while turn < 10 or clock() < end:
        turn += 1
        start = clock()
        call(turn)
        best = min(best, clock() - start)
    return best


if __name__ == "__main__":
    main()
