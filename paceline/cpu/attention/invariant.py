"""Batch-invariant attention: `paceline.cpu.attention.kernel` over tensors, on as many threads as
torch uses.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import pad

from paceline.core.attention_metadata import AttentionMetadata
from paceline.cpu.attention.kernel import attend
from paceline.cpu.attention.tiled import attend_tiled, lanes_of, takes
from paceline.cpu.attention.tiles import BFLOAT16, FLOAT16, FLOAT32
from paceline.cpu.simd_f32x8 import WIDTH

KINDS = {torch.float32: FLOAT32, torch.bfloat16: BFLOAT16, torch.float16: FLOAT16}
_SCORES = 1 << 18  # a tile's scores should stay in a core's cache,
_TILE = 64, 512  # but fewer queries would read the keys too often
_SHARE = 1 << 22  # multiply-adds that are worth waking a thread for,
_SHARE_AWAKE = 1 << 17  # or having help of one that is awake


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
    """Return attention whose bits, for each query, depend on itself and the keys it sees only; a
    query that sees none gets zeros.

    Args:
        query: [rows, heads, columns, dim], float32, bfloat16 or float16, on the CPU, or [1, heads,
            columns of all rows, dim]; key, value: [rows, key heads, places, dim].
        mask: bool [rows or 1, 1, columns, places]; without one a single query sees all keys of its
            row, and of several each sees those up to its own ordinal.
        order: the keys by position.
        scaling: of the scores; default 1 / sqrt(dim).
        softcap: scores are bounded by it, smoothly.
        sinks: [heads]: a score of each head that takes part in the softmax and has no value.
    Returns:
        [rows, columns, heads, value dim], in the dtype and with the rows and columns of the query.
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
        min(max(_TILE[0], min(_TILE[1], _SCORES // keys)), visible.columns * groups),
    )
    tiled = takes(kind, query.shape[3], value.shape[3])
    if tiled:
        unit = max(lanes_of(groups), groups)
        tile = -(-tile // unit) * unit
    values = (
        *_places(query),
        *_places(key),
        *_places(value),
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
    others, work = torch.get_num_threads() - 1, batch * heads * columns * keys * dim
    (attend_tiled if tiled else attend).run(
        values, min(others, work // _SHARE), work < _SHARE_AWAKE
    )
    if value_dim % WIDTH:
        out = out[..., :value_dim]
    return out if query.dtype == out_dtype else out.to(query.dtype)


def _readable(states: Tensor, dim: int) -> Tensor:
    """The same numbers as the kernel reads them: neighbours in the last dim adjacent, dims in
    eights (zeros appended).
    """
    if dim % WIDTH:
        return pad(states, (0, -dim % WIDTH))
    return states if states.stride(3) == 1 else states.contiguous()


def _places(states: Tensor) -> tuple[int, int, int, int]:
    """Address and strides in bytes, but for the last dim."""
    size = states.element_size()
    row, head, column, _ = states.stride()
    return states.data_ptr(), row * size, head * size, column * size
