"""Attend by position in Triton on CUDA, batch-invariant.

An output depends on its query and the keys that the query sees alone, bit for bit.

The kernel is checked in Triton's interpreter on a CPU and compiled for CUDA; it was never run on
hardware. It promises the same as `paceline.cpu.attention.kernel`, with another grouping of the
sums. All sums are in float32 without tensor cores, whose order of sums is not known.

- The keys of a query are ranked by position; rank 0 is the first key it sees. A block has 64 ranks
  (fewer with wide heads), a split four blocks: both are fixed by rank alone.
- The scores of a block are one product. A running softmax goes over the blocks of a split, then
  over the splits. The exponential of an attention sink comes last.

A program takes 16 queries, of all heads of a group, through one split. It reads a block once for
all queries if all of them see the whole block at the same cache positions. It reads other blocks
once per column, and changes the sums of that column's queries alone. Both use the same
instructions, so sharing a read changes no result. A launch is specialised for the sizes of heads
only, and additions are not contracted, so that all launches run the same program.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn.functional import pad

from paceline.attention.paths import Paths, paths_of
from paceline.attention.settings import (
    ALIGNMENT,
    BLOCKS_PER_SPLIT,
    MAX_PARTIAL_SUMS,
    QUERIES_PER_PROGRAM,
)
from paceline.backend.attention_metadata import AttentionMetadata
from paceline.backend.interface import ScoreOptions

_UNSPECIALIZED = [
    "query_row", "query_head", "query_column", "key_row", "key_head", "key_place", "value_row",
    "value_head", "value_place",
    "packed", "first", "last", "key_heads", "groups", "width", "splits", "scaling", "softcap",
]  # fmt: skip


def attention_by_position(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    metadata: AttentionMetadata,
    options: ScoreOptions = ScoreOptions(),
) -> Tensor:
    """Return attention by position; a query that sees no key gets zeros.

    Args:
        query: [rows, heads, columns, dim]; of a packed batch [1, heads, columns of all rows, dim].
            Its dtype is float32, bfloat16 or float16. It is on a CUDA device, or on the CPU in
            Triton's interpreter.
        key: [rows, key heads, positions, dim].
        value: [rows, key heads, positions, value dim].
        mask: As in `Backend.attention`.
        metadata: Keys of each row by position.
        options: Options of the scores.
    Returns:
        [rows, columns, heads, value dim], in the dtype and with the rows and columns of the query.
    """
    heads, dim = query.shape[1], query.shape[3]
    value_dim = value.shape[3]
    scaling = 1 / math.sqrt(dim) if options.scaling is None else options.scaling
    paths = paths_of(metadata, mask, query.shape[2], query.device)
    rows, columns = len(metadata.cached), paths.columns
    states = _readable(query), _readable(key), _readable(value)
    sinks = options.sinks
    sinks = None if sinks is None else sinks.detach().to(torch.float32).contiguous()
    options = ScoreOptions(scaling, options.softcap or 0.0, sinks)
    out = torch.empty(
        query.shape[0], query.shape[2], heads, value_dim, dtype=torch.float32, device=query.device
    )
    wide = max(_power_of_two(states[1].shape[3]), _power_of_two(states[2].shape[3]))
    block = max(16, min(64, 8192 // wide))
    splits = max(1, -(-paths.max_count // (block * BLOCKS_PER_SPLIT)))
    step = max(1, MAX_PARTIAL_SUMS // (rows * heads * splits * (states[2].shape[3] + 2)))
    for first in range(0, columns, step):
        last = min(first + step, columns)
        _launch(states, paths, out, options, (first, last, splits, block))
    return out.to(query.dtype)


def _power_of_two(size: int) -> int:
    return max(16, int(triton.next_power_of_2(size)))


def _readable(states: Tensor) -> Tensor:
    """Return states as the kernel reads them: aligned, the last dim contiguous.

    Zeros fill up the last dim.
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
    out: Tensor,
    options: ScoreOptions,
    part: tuple[int, int, int, int],
) -> None:
    """Run the kernels for the columns first .. last - 1 of every row.

    Args:
        states: Query, key and value.
        paths: Keys of the queries.
        out: Output of the attention.
        options: Scaling, soft cap (0 for none) and sinks.
        part: First and last column, number of splits, and keys per block.
    """
    (query, key, value), (first, last, splits, block) = states, part
    scaling, softcap, sinks = options
    heads, dim = query.shape[1], query.shape[3]
    rows, key_heads, value_dim = len(paths.starts) - 1, value.shape[1], value.shape[3]
    groups, queries = heads // key_heads, rows * (last - first) * heads
    largest, totals = (
        torch.empty(queries, splits, dtype=torch.float32, device=query.device) for _ in range(2)
    )
    sums = torch.empty(queries, splits, value_dim, dtype=torch.float32, device=query.device)
    strides = (*query.stride()[:3], *key.stride()[:3], *value.stride()[:3])
    grid = -(-(last - first) * groups // QUERIES_PER_PROGRAM), rows * key_heads, splits
    _attend[grid](
        query,
        key,
        value,
        largest,
        totals,
        sums,
        paths.starts,
        paths.start,
        paths.leading,
        paths.count,
        paths.listed,
        *strides,
        int(paths.packed),
        first,
        last,
        key_heads,
        groups,
        paths.width,
        splits,
        scaling,
        softcap,
        dim,
        value_dim,
        _power_of_two(dim),
        _power_of_two(value_dim),
        QUERIES_PER_PROGRAM,
        block,
        BLOCKS_PER_SPLIT,
        bool(softcap),
        num_warps=4,
        num_stages=1,
        enable_fp_fusion=False,
    )
    _combine[(queries,)](
        largest,
        totals,
        sums,
        paths.starts,
        paths.count,
        out if sinks is None else sinks,
        out,
        first,
        last,
        heads,
        splits,
        out.shape[3],
        value_dim,
        _power_of_two(value_dim),
        block * BLOCKS_PER_SPLIT,
        sinks is not None,
        num_warps=1,
        num_stages=1,
        enable_fp_fusion=False,
    )


@triton.jit(do_not_specialize=_UNSPECIALIZED)
def _attend(
    query,
    key,
    value,
    largest,
    totals,
    sums,
    starts,
    start,
    leading,
    count,
    listed,
    query_row: tl.int64,
    query_head: tl.int64,
    query_column: tl.int64,
    key_row: tl.int64,
    key_head: tl.int64,
    key_place: tl.int64,
    value_row: tl.int64,
    value_head: tl.int64,
    value_place: tl.int64,
    packed,
    first,
    last,
    key_heads,
    groups,
    width,
    splits,
    scaling,
    softcap,
    dim: tl.constexpr,
    value_dim: tl.constexpr,
    DIMS: tl.constexpr,
    VALUE_DIMS: tl.constexpr,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    BLOCKS: tl.constexpr,
    CAPPED: tl.constexpr,
):
    """Store score maximum, exponential sum and value sum of 16 queries and a split."""
    row, head = tl.program_id(1) // key_heads, tl.program_id(1) % key_heads
    split = tl.program_id(2)
    ordinal = tl.program_id(0) * QUERIES + tl.arange(0, QUERIES)
    origin = tl.load(starts + row)
    columns = tl.load(starts + row + 1) - origin
    real = ordinal < (tl.minimum(last, columns) - first) * groups
    column = tl.minimum(first + ordinal // groups, columns - 1)
    member = head * groups + ordinal % groups
    own = origin + column
    seen = tl.where(real, tl.load(count + own), 0)
    begin, adjacent = tl.load(start + own), tl.load(leading + own)
    front, back = tl.min(column), tl.max(column)
    key += tl.multiple_of(row * key_row, 16) + tl.multiple_of(head * key_head, 16)
    value += tl.multiple_of(row * value_row, 16) + tl.multiple_of(head * value_head, 16)
    dims, value_dims = tl.arange(0, DIMS), tl.arange(0, VALUE_DIMS)
    across = tl.multiple_of(tl.where(packed > 0, 0, row * query_row), 16)
    down = tl.where(packed > 0, own, column).to(tl.int64) * tl.multiple_of(query_column, 16)
    at = across + member * tl.multiple_of(query_head, 16) + down
    inside = real[:, None] & (dims < dim)[None, :]
    states = (
        tl.load(query + at[:, None] + dims[None, :], mask=inside, other=0.0).to(tl.float32)
        * scaling
    )
    top = tl.full([QUERIES], float("-inf"), tl.float32)
    total = tl.zeros([QUERIES], tl.float32)
    summed = tl.zeros([QUERIES, VALUE_DIMS], tl.float32)
    for block in range(split * BLOCKS, split * BLOCKS + BLOCKS):
        low = block * KEYS
        active = seen > low
        leader = tl.max(tl.where(active, column, -1))
        nearest = tl.max(tl.where(active, begin, -1))
        alike = (nearest == tl.min(tl.where(active, begin, 2147483647))) & (
            tl.min(tl.where(active, adjacent, 2147483647)) >= low + KEYS
        )
        parts = tl.where(leader < 0, 0, tl.where(alike, 1, back - front + 1))
        for part in range(parts):
            reader = tl.where(alike, leader, front + part)
            taking = active & (alike | (column == reader))
            which = origin + reader
            known, side_by_side = tl.load(count + which), tl.load(leading + which)
            ranks = low + tl.arange(0, KEYS)
            there = ranks < known
            behind = there & (ranks >= side_by_side)
            others = tl.load(
                listed + which.to(tl.int64) * width + (ranks - side_by_side), mask=behind, other=0
            )
            positions = tl.where(behind, others, tl.load(start + which) + ranks).to(tl.int64)
            at_keys = positions[:, None] * tl.multiple_of(key_place, 16) + dims[None, :]
            keys = tl.load(
                key + at_keys, mask=there[:, None] & (dims < dim)[None, :], other=0.0
            ).to(tl.float32)
            scores = tl.dot(states, tl.trans(keys), input_precision="ieee")
            if CAPPED:
                size = tl.abs(scores / softcap)
                tanh = (1.0 - tl.exp(-2.0 * size)) / (1.0 + tl.exp(-2.0 * size))
                scores = tl.where(scores < 0, -softcap * tanh, softcap * tanh)
            scores = tl.where(taking[:, None] & there[None, :], scores, float("-inf"))
            # 0 avoids a difference of infinities.
            new_top = tl.where(taking, tl.maximum(top, tl.max(scores, 1)), 0.0)
            weights = tl.exp(scores - new_top[:, None])
            shrink = tl.exp(top - new_top)
            at_values = positions[:, None] * tl.multiple_of(value_place, 16) + value_dims[None, :]
            shown = there[:, None] & (value_dims < value_dim)[None, :]
            values = tl.load(value + at_values, mask=shown, other=0.0).to(tl.float32)
            added = tl.dot(weights, values, input_precision="ieee")
            total = tl.where(taking, total * shrink + tl.sum(weights, 1), total)
            # Values that other queries see may be no numbers.
            summed = tl.where(taking[:, None], summed * shrink[:, None] + added, summed)
            top = tl.where(taking, new_top, top)
    output = (
        ((row * (last - first) + column - first) * key_heads * groups + member) * splits + split
    ).to(tl.int64)
    used = real & (seen > split * BLOCKS * KEYS)
    tl.store(largest + output, top, mask=used)
    tl.store(totals + output, total, mask=used)
    shown = used[:, None] & (value_dims < value_dim)[None, :]
    tl.store(sums + output[:, None] * value_dim + value_dims[None, :], summed, mask=shown)


@triton.jit(do_not_specialize=["first", "last", "heads", "splits"])
def _combine(
    largest,
    totals,
    sums,
    starts,
    count,
    sinks,
    out,
    first,
    last,
    heads,
    splits,
    out_dim: tl.constexpr,
    value_dim: tl.constexpr,
    VALUE_DIMS: tl.constexpr,
    SPLIT: tl.constexpr,
    SINKS: tl.constexpr,
):
    """Combine the splits of a query in order, then the sink, and store its output."""
    query = tl.program_id(0).to(tl.int64)
    head = query % heads
    column, row = first + query // heads % (last - first), query // heads // (last - first)
    origin = tl.load(starts + row)
    exists = column < tl.load(starts + row + 1) - origin
    seen = tl.load(count + origin + column, mask=exists, other=0)
    dims = tl.arange(0, VALUE_DIMS)
    top, total, summed = (
        tl.full([], float("-inf"), tl.float32),
        tl.zeros([], tl.float32),
        tl.zeros([VALUE_DIMS], tl.float32),
    )
    for split in range((seen + SPLIT - 1) // SPLIT):
        at = query * splits + split
        new = tl.load(largest + at)
        new_top = tl.maximum(top, new)
        shrink, grow = tl.exp(top - new_top), tl.exp(new - new_top)
        total = total * shrink + tl.load(totals + at) * grow
        summed = (
            summed * shrink
            + tl.load(sums + at * value_dim + dims, mask=dims < value_dim, other=0.0) * grow
        )
        top = new_top
    if SINKS:
        sink = tl.load(sinks + head)
        new_top = tl.maximum(top, sink)
        total = total * tl.exp(top - new_top) + tl.exp(sink - new_top)
        summed = summed * tl.exp(top - new_top)
    index = (origin + column) * heads + head
    shown = dims < tl.where(exists, out_dim, 0)
    tl.store(out + index * out_dim + dims, summed / tl.where(seen > 0, total, 1.0), mask=shown)
