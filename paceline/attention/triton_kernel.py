"""Compute batch-invariant attention with Triton on CUDA.

An output depends only on its query and on the keys visible to the query, bit for bit.
`paceline.cpu.attention.kernel` makes the same guarantee, but groups the sums differently.

- The keys of a query are ranked by position; rank 0 is the first visible key. Blocks of keys and
  splits of 256 keys begin at fixed ranks.
- One matrix product with 16 query rows computes the scores of a block. The product runs on tensor
  cores or, in float32, with fused multiply-adds. The tile size never changes, and no row's sum
  depends on another row.
- A running softmax processes the blocks of a split. `combine_splits` sums the results of all splits
  and the exponential of the attention sink.

A program processes one split for the queries of several columns (query tokens), and for all query
heads that share a key head. A block is shared if it contains the same cache positions for all these
queries. The program reads a shared block once for all queries. It reads any other block once per
column, and then updates only the sums of that column. Both cases use the same instructions.
"""

from __future__ import annotations

import math

import torch
import triton
from torch import Tensor
from torch.nn.functional import pad

from paceline.attention.paths import Paths, paths_of
from paceline.attention.settings import (
    ALIGNMENT,
    COMBINE_WARPS,
    KEYS_PER_SPLIT,
    LAUNCHES,
    MAX_PARTIAL_SUMS,
    QUERIES_PER_PROGRAM,
    SPLITS_AT_ONCE,
    WIDE_LAUNCH,
    Launch,
)
from paceline.attention.triton_programs import attend_split, combine_splits
from paceline.backend.attention_metadata import AttentionMetadata
from paceline.backend.interface import ScoreOptions


def attention_by_position(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    metadata: AttentionMetadata,
    options: ScoreOptions = ScoreOptions(),
) -> Tensor:
    """Compute attention in text order; outputs are zero for queries without keys.

    Args:
        query: Queries, [rows, heads, columns, dim]; for a packed batch, [1, heads, columns of all
            rows, dim]. The dtype is float32, bfloat16 or float16. The device is a CUDA device, or
            the CPU with Triton's interpreter.
        key: Keys, [rows, key heads, positions, dim].
        value: Values, [rows, key heads, positions, value dim].
        mask: Mask, as in `Backend.attention`.
        metadata: Keys of each row, ordered by position.
        options: Options for the attention scores.
    Returns:
        Output, [rows, columns, heads, value dim]. The dtype and the numbers of rows and columns
        are those of the query.
    """
    heads, dim, value_dim = query.shape[1], query.shape[3], value.shape[3]
    columns = max(1, QUERIES_PER_PROGRAM // (heads // key.shape[1]))  # queries per tile
    paths = paths_of(metadata, mask, query.shape[2], columns, query.device)
    scaling = 1 / math.sqrt(dim) if options.scaling is None else options.scaling
    sinks = None if options.sinks is None else options.sinks.detach().contiguous()
    options = ScoreOptions(scaling, options.softcap or 0.0, sinks)
    states = _readable(query), _readable(key), _readable(value)
    out = query.new_empty(query.shape[0], query.shape[2], heads, value_dim)
    splits = max(1, -(-paths.max_count // KEYS_PER_SPLIT))
    numbers = heads * splits * (_power_of_two(value_dim) + 2)  # partial sums per query
    step = max(1, MAX_PARTIAL_SUMS // (columns * numbers))
    # Triton launches on the current device.
    with torch.cuda.device_of(query):  # type: ignore[no-untyped-call]
        for first in range(0, paths.num_tiles, step):
            last = min(first + step, paths.num_tiles)
            partial = paths.scratch((paths.first_query(last) - paths.first_query(first)) * numbers)
            _launch(states, paths, (partial, out), options, (first, last, splits))
    return out


def launch_of(itemsize: int, dims: int) -> Launch:
    """Return the launch settings for a head size and data type.

    Args:
        itemsize: Number of bytes per value.
        dims: The larger of the key and value head sizes, a power of two.
    """
    return LAUNCHES.get((itemsize, max(64, dims)), WIDE_LAUNCH)


def _power_of_two(size: int) -> int:
    return max(16, int(triton.next_power_of_2(size)))


def _readable(states: Tensor) -> Tensor:
    """Return queries, keys or values in aligned memory.

    The last dimension is contiguous, and is padded with zeros.
    """
    if states.shape[3] % ALIGNMENT:
        return pad(states, (0, -states.shape[3] % ALIGNMENT))
    strides = [
        stride
        for stride, size in zip(states.stride()[:3], states.shape[:3], strict=True)
        if size > 1
    ]
    aligned = (
        states.stride(3) == 1
        and not states.data_ptr() % 16
        and not any(stride % ALIGNMENT for stride in strides)
    )
    return states if aligned else states.clone(memory_format=torch.contiguous_format)


def _launch(
    states: tuple[Tensor, Tensor, Tensor],
    paths: Paths,
    results: tuple[Tensor, Tensor],
    options: ScoreOptions,
    part: tuple[int, int, int],
) -> None:
    """Launch the programs for a range of tiles.

    Args:
        states: Query, key and value.
        paths: Visible keys of the queries.
        results: Memory for the partial sums, and the tensor for the attention output.
        options: Scaling, soft cap (0 for none) and sinks.
        part: First tile, tile after the last one, and number of splits.
    """
    (query, key, value), (partial, out), (first, last, splits) = states, results, part
    heads, key_heads, dim, value_dim = query.shape[1], key.shape[1], query.shape[3], value.shape[3]
    dims, value_dims = _power_of_two(dim), _power_of_two(value_dim)
    groups, origin = heads // key_heads, paths.first_query(first)
    launch = launch_of(query.dtype.itemsize, max(dims, value_dims))
    members = -(-paths.tile_columns * groups // QUERIES_PER_PROGRAM)
    outputs = (paths.first_query(last) - origin) * heads
    parts = outputs * splits
    fixed = {"num_stages": 1, "enable_fp_fusion": False}
    attend_split[last - first, key_heads * members, splits](
        query,
        key,
        value,
        partial,
        paths.table,
        *(stride // ALIGNMENT for states in (query, key, value) for stride in states.stride()[:3]),
        int(paths.packed),
        paths.queries,
        first,
        origin,
        paths.num_tiles,
        key_heads,
        groups,
        paths.width,
        splits,
        parts,
        options.scaling,
        options.softcap,
        dim,
        value_dim,
        dims,
        value_dims,
        QUERIES_PER_PROGRAM,
        launch.keys,
        KEYS_PER_SPLIT,
        launch.stages,
        bool(options.softcap),
        ALIGNMENT,
        num_warps=launch.warps,
        **fixed,
    )
    combine_splits[(outputs,)](
        partial,
        paths.table,
        out if options.sinks is None else options.sinks,
        out,
        paths.queries,
        origin,
        paths.num_tiles,
        heads,
        splits,
        parts,
        out.shape[3],
        value_dims,
        KEYS_PER_SPLIT,
        SPLITS_AT_ONCE,
        options.sinks is not None,
        num_warps=COMBINE_WARPS,
        **fixed,
    )
