"""Run batch-invariant attention kernels on tensors.

The kernels use at most as many threads as torch (`torch.get_num_threads`).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import pad

from paceline.backend.attention_metadata import AttentionMetadata
from paceline.backend.interface import ScoreOptions
from paceline.cpu.attention.kernel import attend
from paceline.cpu.attention.tiled import attend_tiled, queries_per_block, suits
from paceline.cpu.memory import KINDS
from paceline.cpu.settings import (
    MAX_QUERIES_PER_TILE,
    MIN_QUERIES_PER_TILE,
    MIN_SHARED_MULTIPLY_ADDS,
    MULTIPLY_ADDS_PER_ATTENTION_HELPER,
    SCORES_PER_TILE,
)
from paceline.cpu.simd_f32x8 import WIDTH


def attention_by_position(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    metadata: AttentionMetadata,
    options: ScoreOptions = ScoreOptions(),
) -> Tensor:
    """Compute attention that depends only on the query and its visible keys.

    The output of a query without visible keys is zero.

    Args:
        query: Queries, float32, bfloat16 or float16 [rows, heads, columns, dim], on the CPU. For a
            packed batch, [1, heads, columns of all rows, dim].
        key: Keys, [rows, key heads, cache positions, dim].
        value: Values, [rows, key heads, cache positions, value dim].
        mask: Bool tensor [rows or 1, 1, columns, cache positions]. If None and there is one query
            per row, the query sees all keys of its row. If None and there are several queries per
            row, query i sees keys 0 to i.
        metadata: Keys of each row, in the order of their text positions.
        options: Scaling, bias, soft cap and sinks. Default: scaling by 1 / sqrt(dim) only.

    Returns:
        Output, [rows, columns, heads, value dim], in the dtype of the query. Rows and columns are
        the same as in `query`.
    """
    batch, heads, columns, dim = query.shape
    value_dim, keys = value.shape[3], metadata.keys
    groups = heads // value.shape[1]
    visible = metadata.visible(mask, columns)
    query, key, value = _readable(query, dim), _readable(key, dim), _readable(value, value_dim)
    out_dtype = torch.bfloat16 if query.dtype == torch.bfloat16 else torch.float32
    out = torch.empty(batch, columns, heads, value.shape[3], dtype=out_dtype)
    sinks, bias = _sinks(options.sinks), _biases(options.bias, query, key)
    kind = KINDS[query.dtype]
    tiled = suits(kind, query.shape[3], value.shape[3])
    values = (
        *_address_and_strides(query),
        *_address_and_strides(key),
        *_address_and_strides(value),
        out.data_ptr(),
        0 if sinks is None else sinks.data_ptr(),
        *_address_and_strides(bias),
        len(metadata.cached),
        value.shape[1],
        groups,
        visible.columns,
        visible.packed,
        query.shape[3],
        value.shape[3],
        kind,
        queries_per_tile(keys, groups, visible.columns, tiled),
        keys,
        1 / math.sqrt(dim) if options.scaling is None else options.scaling,
        options.softcap or 0.0,
        *visible.addresses,
        *metadata.addresses,
        len(visible.runs),
        metadata.tail.shape[1],
        0,
    )
    helpers, multiply_adds = torch.get_num_threads() - 1, batch * heads * columns * keys * dim
    (attend_tiled if tiled else attend).run(
        values,
        min(helpers, multiply_adds // MULTIPLY_ADDS_PER_ATTENTION_HELPER),
        multiply_adds < MIN_SHARED_MULTIPLY_ADDS,
    )
    if value_dim % WIDTH:
        out = out[..., :value_dim]
    return out if query.dtype == out_dtype else out.to(query.dtype)


def queries_per_tile(keys: int, groups: int, columns: int, tiled: bool) -> int:
    """Return the maximum number of queries that a thread processes together (a tile).

    Args:
        keys: Number of keys in the longest row.
        groups: Number of query heads that share a key head.
        columns: Maximum number of columns (query tokens) per row.
        tiled: Whether the kernel uses AMX. If so, a tile contains whole blocks of queries, and all
            `groups` query heads of its tokens.
    """
    in_cache = max(MIN_QUERIES_PER_TILE, min(MAX_QUERIES_PER_TILE, SCORES_PER_TILE // keys))
    queries = min(in_cache, columns * groups)
    unit = max(queries_per_block(groups), groups) if tiled else 1
    return -(-queries // unit) * unit


def _readable(states: Tensor, dim: int) -> Tensor:
    """Make the last dimension of queries, keys or values contiguous.

    If `dim` is not a multiple of eight, the function pads the dimension with zeros.
    """
    if dim % WIDTH:
        return pad(states, (0, -dim % WIDTH))
    return states if states.stride(3) == 1 else states.contiguous()


def _sinks(sinks: Tensor | None) -> Tensor | None:
    return None if sinks is None else sinks.detach().to(torch.float32).contiguous()


def _biases(bias: Tensor | None, query: Tensor, key: Tensor) -> Tensor | None:
    """Convert biases to float32 [rows, heads, columns, cache positions]."""
    if bias is None:
        return None
    shape = *query.shape[:3], key.shape[2]
    return _readable(bias.detach().to(torch.float32).expand(shape), WIDTH)


def _address_and_strides(states: Tensor | None) -> tuple[int, int, int, int]:
    """Return a tensor's address and first three strides in bytes, or zeros for None."""
    if states is None:
        return 0, 0, 0, 0
    size = states.element_size()
    row, head, column, _ = states.stride()
    return states.data_ptr(), row * size, head * size, column * size
