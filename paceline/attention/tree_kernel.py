"""Compute attention over KV-cache slots and draft trees with Triton on CUDA.

The kernel reads the lengths of the texts from device memory. A captured CUDA graph therefore works
for all lengths that the graph's fixed shapes allow. The keys are split into ranges, and a separate
program handles each range. Programs whose range contains no keys return immediately.
"""

from __future__ import annotations

import math

import torch
import triton
from torch import Tensor

from paceline.attention.settings import (
    TREE_LAUNCHES,
    TREE_MIN_SPLIT_KEYS,
    TREE_PROGRAMS,
    WIDE_TREE_LAUNCH,
)
from paceline.attention.tree import TreeVisibility
from paceline.attention.tree_programs import attend_tree, combine_tree, store_states


def attention_over_tree(
    query: Tensor, key: Tensor, value: Tensor, tree: TreeVisibility, scaling: float | None
) -> Tensor:
    """Compute attention from new tokens and draft nodes to the text and the tree.

    The columns are the new tokens and draft nodes of each row.

    Args:
        query: Queries, [rows, heads, columns, dim], with a contiguous last dimension.
        key: Keys, [key rows, key heads, positions, dim]; the positions of a head are contiguous.
        value: Values, [key rows, key heads, positions, value dim], in the same layout.
        tree: Keys that each column sees.
        scaling: Factor applied to the scores; None means 1 / sqrt(dim).
    Returns:
        Output, [rows, columns, heads, value dim], in the dtype of the query.
    """
    rows, heads, columns, dim = query.shape
    key_heads, value_dim = key.shape[1], value.shape[3]
    groups = heads // key_heads
    dims, value_dims = (max(16, triton.next_power_of_2(size)) for size in (dim, value_dim))
    size = query.dtype.itemsize, max(64, dims, value_dims)
    launch = TREE_LAUNCHES.get(size, WIDE_TREE_LAUNCH)
    queries = max(16, min(launch.queries, triton.next_power_of_2(groups * columns)))
    tiles = -(-groups * columns // queries)
    splits, split_keys = _split(key.shape[2], rows * key_heads * tiles)
    if query.stride(3) != 1:
        query = query.contiguous()
    out = query.new_empty(rows, columns, heads, value_dim)
    numbers = rows * columns * heads * splits * (value_dims + 2) if splits > 1 else 0
    partial = torch.empty(numbers, dtype=torch.float32, device=query.device)
    attend_tree[rows * key_heads, tiles, splits](
        query,
        key,
        value,
        partial,
        out,
        tree.cached,
        tree.block.view(torch.uint8),
        tree.positions,
        tree.key_positions,
        tree.key_rows,
        *query.stride()[:3],
        *key.stride()[:2],
        *value.stride()[:2],
        split_keys,
        splits,
        columns,
        1 / math.sqrt(dim) if scaling is None else scaling,
        key_heads,
        groups,
        dim,
        value_dim,
        tree.reach.window or 0,
        tree.reach.chunk or 0,
        splits > 1,
        dims,
        value_dims,
        queries,
        launch.keys,
        num_warps=launch.warps,
    )
    if splits > 1:
        rounded = triton.next_power_of_2(splits)
        combine_tree[(rows * columns * heads,)](
            partial, out, splits, value_dim, rounded, value_dims, num_warps=4
        )
    return out


def store_columns(
    states: tuple[Tensor, Tensor],
    stores: tuple[Tensor, Tensor],
    cache_positions: Tensor,
    store_rows: Tensor,
) -> None:
    """Write the keys and values of all columns (tokens or padding) to their slots.

    Args:
        states: Keys [rows, heads, columns, dim] and values [rows, heads, columns, value dim].
        stores: Tensors with the keys and the values of all slots, [store rows, heads, positions,
            dim] each.
        cache_positions: Cache position of each column, int64 [rows, columns]. Columns with a
            negative position are not written.
        store_rows: Row of the `stores` tensors at which each column's slot begins, int64
            [rows, columns].
    """
    keys, values = (state if state.stride(3) == 1 else state.contiguous() for state in states)
    rows, heads, columns, dim = keys.shape
    value_dim = values.shape[3]
    store_states[rows * columns, heads](
        keys,
        values,
        *stores,
        cache_positions,
        store_rows,
        *keys.stride()[:3],
        *values.stride()[:3],
        *stores[0].stride()[:2],
        *stores[1].stride()[:2],
        columns,
        dim,
        value_dim,
        triton.next_power_of_2(dim),
        triton.next_power_of_2(value_dim),
        num_warps=1,
    )


def _split(positions: int, programs: int) -> tuple[int, int]:
    """Return the number of key ranges (splits), and the number of keys in each.

    Each program reads one range. The ranges are as small as possible, provided that at most
    `TREE_PROGRAMS` programs are launched.
    """
    keys = TREE_MIN_SPLIT_KEYS
    while -(-positions // keys) * programs > TREE_PROGRAMS and keys < positions:
        keys *= 2
    return -(-positions // keys), keys
