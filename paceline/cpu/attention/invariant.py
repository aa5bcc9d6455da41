"""Run the batch-invariant attention kernels on tensors, on torch's thread count."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import pad

from paceline.core.attention_metadata import AttentionMetadata
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
    order: AttentionMetadata,
    scaling: float | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Return attention whose bits depend only on a query and the keys it sees.

    A query that sees no key gets zeros.

    Args:
        query: Tensor [rows, heads, columns, dim] on the CPU, or [1, heads, columns of all rows,
            dim]. The dtype is float32, bfloat16 or float16.
        key: Tensor [rows, key heads, cache positions, dim].
        value: Tensor [rows, key heads, cache positions, value dim].
        mask: Bool tensor [rows or 1, 1, columns, cache positions]. None (default): a single query
            sees all keys of its row; of several, query i sees the keys with ordinals up to i.
        order: Keys of the rows by text position.
        scaling: Factor of the scores. Default: 1 / sqrt(dim).
        softcap: Bound of the scores, by softcap * tanh(score / softcap). Default: none.
        sinks: Tensor [heads] of scores that take part in the softmax without a value. Default:
            none.

    Returns:
        Tensor [rows, columns, heads, value dim] of the query's dtype, with its rows and columns.
    """
    batch, heads, columns, dim = query.shape
    key_heads, value_dim = value.shape[1], value.shape[3]
    groups, keys = heads // key_heads, order.keys
    visible = order.visible(mask, columns)
    query, key, value = _readable(query, dim), _readable(key, dim), _readable(value, value_dim)
    out_dtype = torch.bfloat16 if query.dtype == torch.bfloat16 else torch.float32
    out = torch.empty(batch, columns, heads, value.shape[3], dtype=out_dtype)
    sinks = None if sinks is None else sinks.detach().to(torch.float32).contiguous()
    kind, tile = (
        KINDS[query.dtype],
        min(
            max(MIN_QUERIES_PER_TILE, min(MAX_QUERIES_PER_TILE, SCORES_PER_TILE // keys)),
            visible.columns * groups,
        ),
    )
    tiled = suits(kind, query.shape[3], value.shape[3])
    if tiled:
        unit = max(queries_per_block(groups), groups)
        tile = -(-tile // unit) * unit
    values = (
        *_address_and_strides(query),
        *_address_and_strides(key),
        *_address_and_strides(value),
        out.data_ptr(),
        0 if sinks is None else sinks.data_ptr(),
        len(order.cached),
        key_heads,
        groups,
        visible.columns,
        visible.packed,
        query.shape[3],
        value.shape[3],
        kind,
        tile,
        keys,
        1 / math.sqrt(dim) if scaling is None else scaling,
        softcap or 0.0,
        *visible.places,
        *order.places,
        len(visible.runs),
        order.tail.shape[1],
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


def _readable(states: Tensor, dim: int) -> Tensor:
    """Return states with an adjacent last dim, padded to a multiple of eight."""
    if dim % WIDTH:
        return pad(states, (0, -dim % WIDTH))
    return states if states.stride(3) == 1 else states.contiguous()


def _address_and_strides(states: Tensor) -> tuple[int, int, int, int]:
    """Return the address of a tensor and its first three strides in bytes."""
    size = states.element_size()
    row, head, column, _ = states.stride()
    return states.data_ptr(), row * size, head * size, column * size
