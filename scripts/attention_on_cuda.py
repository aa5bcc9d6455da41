"""Compare the times of batch-invariant attention and SDPA on a GPU, as Markdown tables.

    python -u scripts/attention_on_cuda.py [--dtype bfloat16] [--dim 128] [--no-launches]

The shapes are those of a model with 8 billion parameters: 32 query heads and 8 key heads. The
columns of a request are a draft tree that follows its cached context. Times are in microseconds per
layer: the device time in a CUDA graph, and the time until the call returns. Short contexts stay in
the GPU's cache between calls. The second table varies the tile sizes and the number of warps in
`paceline.attention.settings`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

_SCRIPTS = Path(__file__).resolve().parent
sys.path[:0] = [str(_SCRIPTS), str(_SCRIPTS.parent)]  # paceline need not be installed

from gpu_parts.clock import device_ms, host_ms, wall_ms  # noqa: E402

from paceline.attention import AttentionMetadata, sdpa, triton_kernel  # noqa: E402
from paceline.attention.cudnn import without_cudnn  # noqa: E402
from paceline.attention.settings import LAUNCHES, Launch  # noqa: E402
from paceline.core.request import Request  # noqa: E402
from paceline.core.sampling_params import SamplingParams  # noqa: E402
from paceline.core.tree import DraftTree  # noqa: E402
from paceline.model.padded_batch import lay_out  # noqa: E402

HEADS, KEY_HEADS = 32, 8
BRANCHES = 4  # of a tree's root
REPEATS = 10
CUDA = torch.device("cuda")
# Requests, tokens of each context, and columns of each request.
SHAPES = [
    (1, 512, 1), (1, 8192, 1), (1, 512, 16), (1, 8192, 16), (1, 8192, 64), (1, 32768, 1),
    (8, 2048, 1), (8, 2048, 16), (32, 2048, 1), (32, 2048, 8), (1, 0, 2048),
]  # fmt: skip
TUNED = [(1, 8192, 1), (1, 8192, 16), (32, 2048, 1)]
CANDIDATES = {
    2: [
        Launch(keys, warps, stages)
        for keys, warps in ((32, 2), (32, 4), (64, 4), (64, 8), (128, 8))
        for stages in (1, 2, 3)
    ],
    4: [Launch(keys, warps, stages) for keys in (16, 32) for warps in (4, 8) for stages in (1, 2)],
}


@dataclass(frozen=True, slots=True)
class Inputs:
    """Inputs of one call.

    Attributes:
        query: [requests, heads, columns, dim].
        key: [requests, key heads, keys, dim].
        value: [requests, key heads, keys, dim].
        mask: Visible keys of each column, [requests, 1, columns, keys].
        metadata: Order of the keys.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor
    metadata: AttentionMetadata


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--no-launches", action="store_true")
    args = parser.parse_args()
    dtype = getattr(torch, args.dtype)
    time_attention(dtype, args.dim, SHAPES)
    if not args.no_launches:
        time_launches(dtype, args.dim, TUNED)


@torch.inference_mode()
def time_attention(
    dtype: torch.dtype = torch.bfloat16,
    dim: int = 128,
    shapes: list[tuple[int, int, int]] = SHAPES,
    device: torch.device = CUDA,
) -> None:
    """Print the times of batch-invariant attention and SDPA, and the error of the results.

    Args:
        dtype: Data type of queries, keys and values.
        dim: Head size.
        shapes: For each case, the number of requests, context tokens, and columns per request.
        device: Device to measure.
    """
    print("| requests | context | columns | us | us with launch | GB/s | SDPA us | difference |")
    print("|---|---|---|---|---|---|---|---|")
    for shape in shapes:
        inputs = _inputs(shape, dtype, dim, device)
        ours, theirs = _by_position(inputs), _sdpa(inputs)
        difference = float((ours().float() - theirs().float()).abs().max())
        took = _device_us(ours, device)
        size = inputs.key.nbytes + inputs.value.nbytes
        cells = (
            *map(str, shape),
            f"{took:.0f}",
            f"{1e3 * host_ms(ours, device, REPEATS):.0f}",
            f"{size / took / 1e3:.0f}",
            f"{_device_us(theirs, device):.0f}",
            f"{difference:.1e}",
        )
        print(f"| {' | '.join(cells)} |", flush=True)


@torch.inference_mode()
def time_launches(
    dtype: torch.dtype = torch.bfloat16,
    dim: int = 128,
    shapes: list[tuple[int, int, int]] = TUNED,
    device: torch.device = CUDA,
) -> None:
    """Print the times with other tile sizes and numbers of warps.

    Args:
        dtype: Data type of queries, keys and values.
        dim: Head size; must be a key of `LAUNCHES`.
        shapes: For each case, the number of requests, context tokens, and columns per request.
        device: Device to measure.
    """
    made = [_inputs(shape, dtype, dim, device) for shape in shapes]
    key = dtype.itemsize, dim
    chosen = LAUNCHES[key]
    print(f"\n| keys, warps, stages ({dtype}, {dim}) |", " | ".join(map(str, shapes)), "|")
    print("|---" * (1 + len(shapes)) + "|")
    for launch in CANDIDATES[dtype.itemsize]:
        LAUNCHES[key] = launch
        try:
            cells = [f"{_device_us(_by_position(inputs), device):.1f}" for inputs in made]
        except Exception as error:  # it may need more memory than the GPU has
            cells = [f"{type(error).__name__}"] * len(made)
        finally:
            LAUNCHES[key] = chosen
        mark = ", chosen" if launch == chosen else ""
        print(f"| {', '.join(map(str, launch))}{mark} | {' | '.join(cells)} |", flush=True)


def _device_us(call: Callable[[], object], device: torch.device) -> float:
    alone = device_ms(call, device, REPEATS)
    return 1e3 * (wall_ms(call, device, REPEATS) if alone is None else alone)


def _inputs(
    shape: tuple[int, int, int], dtype: torch.dtype, dim: int, device: torch.device
) -> Inputs:
    requests, context, columns = shape
    fed, trees = [], []
    for _ in range(requests):
        pending = 1 if context else columns  # without a context, a prompt
        request = Request([1] * (context + pending), SamplingParams())
        request.cached, request.slot = context, 0
        fed.append(request)
        trees.append(DraftTree([1] * (columns - pending), list(_parents(columns - pending))))
    layout = lay_out(fed, trees, prefill_chunk=1 << 20)
    keys = context + columns
    metadata = AttentionMetadata.from_columns(
        layout.cached, layout.cache_positions, layout.positions, layout.padding
    )

    def normal(heads: int, length: int) -> Tensor:
        return torch.randn(requests, heads, length, dim, device=device, dtype=dtype)

    mask = torch.from_numpy(layout.visible_mask(keys))[:, None].to(device)
    query, key, value = normal(HEADS, columns), normal(KEY_HEADS, keys), normal(KEY_HEADS, keys)
    return Inputs(query, key, value, mask, metadata)


def _parents(nodes: int) -> Iterator[int]:
    """Yield the parent of each node in a tree of chains that start at the root."""
    for node in range(nodes):
        yield -1 if node < BRANCHES else node - BRANCHES


def _by_position(inputs: Inputs) -> Callable[[], Tensor]:
    return lambda: triton_kernel.attention_by_position(
        inputs.query, inputs.key, inputs.value, inputs.mask, inputs.metadata
    )


def _sdpa(inputs: Inputs) -> Callable[[], Tensor]:
    """Run SDPA as in decoding, without cuDNN; repeat the mask in each call."""

    def call() -> Tensor:
        query, key = inputs.query, inputs.key
        with without_cudnn():
            groups = query.shape[1] // key.shape[1]
            mask = sdpa._grouped_mask({}, inputs.mask, groups, query.dtype)
            return sdpa._grouped(query, key, inputs.value, mask, None).transpose(1, 2)

    return call


if __name__ == "__main__":
    main()
