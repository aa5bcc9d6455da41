"""Define the Triton programs of batch-invariant attention; see `triton_kernel`.

Triton specialises the programs only for dtypes and head sizes. All launches with the same dtype and
head size therefore run the same machine code. The compiler does not fuse additions with
multiplications.
"""

from __future__ import annotations

import triton
import triton.language as tl

_UNSPECIALIZED = [
    "query_row", "query_head", "query_column", "key_row", "key_head", "key_position", "value_row",
    "value_head", "value_position", "packed", "queries", "first_tile", "origin", "tiles", "heads",
    "key_heads", "groups", "width", "splits", "parts", "scaling", "softcap",
]  # fmt: skip


@triton.jit(do_not_specialize=_UNSPECIALIZED)
def attend_split(
    query,
    key,
    value,
    partial,
    table,
    query_row: tl.int64,
    query_head: tl.int64,
    query_column: tl.int64,
    key_row: tl.int64,
    key_head: tl.int64,
    key_position: tl.int64,
    value_row: tl.int64,
    value_head: tl.int64,
    value_position: tl.int64,
    packed,
    queries,
    first_tile,
    origin,
    tiles,
    key_heads,
    groups,
    width,
    splits,
    parts,
    scaling,
    softcap,
    dim: tl.constexpr,
    value_dim: tl.constexpr,
    DIMS: tl.constexpr,
    VALUE_DIMS: tl.constexpr,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    SPLIT: tl.constexpr,
    STAGES: tl.constexpr,
    CAPPED: tl.constexpr,
    ALIGNMENT: tl.constexpr,
):
    """Compute the attention of one tile of queries to one range of keys (a split).

    A tile contains the queries of several columns, for all query heads that share one key head. For
    each query, the program stores the largest score, the sum of the exponentials, and the weighted
    sum of the values. All strides are multiples of `ALIGNMENT` and are passed divided by it, so
    the compiler can assume aligned reads. `triton_kernel._launch` sets all arguments.
    """
    tile = table + (first_tile + tl.program_id(0)) * 4
    row, own, columns = tl.load(tile), tl.load(tile + 1), tl.load(tile + 2)
    start = table + tiles * 4
    leading, count, listed = start + queries, start + queries * 2, start + queries * 3
    head, low = tl.program_id(1) % key_heads, tl.program_id(2) * SPLIT
    ordinal = tl.program_id(1) // key_heads * QUERIES + tl.arange(0, QUERIES)
    own_column = tl.minimum(ordinal // groups, columns - 1)
    member, query_index = head * groups + ordinal % groups, own + own_column
    seen = tl.where(ordinal < columns * groups, tl.load(count + query_index), 0)
    active = seen > low
    begin, unbroken = tl.load(start + query_index), tl.load(leading + query_index) - low
    shared, blocks = _blocks(active, seen - low, begin, unbroken, KEYS, SPLIT)
    last = tl.max(tl.where(active, own_column, 0))
    first = tl.min(tl.where(active, own_column, last))
    dims, value_dims = tl.arange(0, DIMS), tl.arange(0, VALUE_DIMS)
    column = tl.where(packed > 0, own, tl.load(tile + 3)) + own_column
    at = tl.where(packed > 0, 0, row * query_row) + member * query_head + column * query_column
    states = tl.load(
        query + at[:, None] * ALIGNMENT + dims[None, :],
        mask=active[:, None] & (dims < dim)[None, :],
        other=0.0,
    )
    key += (row * key_row + head * key_head) * ALIGNMENT
    value += (row * value_row + head * value_head) * ALIGNMENT
    top = tl.full([QUERIES], float("-inf"), tl.float32)
    total = tl.zeros([QUERIES], tl.float32)
    summed = tl.zeros([QUERIES, VALUE_DIMS], tl.float32)
    for turn in tl.range(0, shared + (blocks - shared) * (last - first + 1), num_stages=STAGES):
        alone = tl.maximum(turn - shared, 0)
        rank = low + tl.where(turn < shared, turn, shared + alone // (last - first + 1)) * KEYS
        reader = tl.where(turn < shared, last, first + alone % (last - first + 1))
        taking = (seen > rank) & ((turn < shared) | (own_column == reader))
        positions, there = _locate(start, leading, count, listed, own + reader, width, rank, KEYS)
        keys = _read(key, positions * (key_position * ALIGNMENT), there, dims, dim)
        values = _read(
            value, positions * (value_position * ALIGNMENT), there, value_dims, value_dim
        )
        scores = tl.dot(states, tl.trans(keys), input_precision="ieee") * scaling
        if CAPPED:
            scores = _capped(scores, softcap)
        scores = tl.where(taking[:, None] & there[None, :], scores, float("-inf"))
        # 0 avoids a difference of infinities.
        new_top = tl.where(taking, tl.maximum(top, tl.max(scores, 1)), 0.0)
        weights = tl.exp(scores - new_top[:, None])
        shrink = tl.exp(top - new_top)
        added = _weighted(weights, values)
        total = tl.where(taking, total * shrink + tl.sum(weights, 1), total)
        # Values that only other queries see may be NaN.
        summed = tl.where(taking[:, None], summed * shrink[:, None] + added, summed)
        top = tl.where(taking, new_top, top)
    output = (query_index - origin) * (key_heads * groups) + member
    output = output.to(tl.int64) * splits + tl.program_id(2)
    sums = partial + output[:, None] * VALUE_DIMS + value_dims[None, :]
    tl.store(sums, summed, mask=active[:, None])
    tops = partial + parts.to(tl.int64) * VALUE_DIMS + output
    tl.store(tops, top, mask=active)
    tl.store(tops + parts, total, mask=active)


@triton.jit
def _blocks(active, seen, begin, unbroken, KEYS: tl.constexpr, SPLIT: tl.constexpr):
    """Return how many key blocks all queries share, and how many there are in total.

    A split consists of blocks of KEYS keys each. A block is shared if it contains the same cache
    positions for all queries. The shared blocks come first. The program reads a shared block only
    once, and any other block once per column.

    Args:
        active: Whether each query sees keys in this split.
        seen: Number of keys that each query sees in this split and in later splits.
        begin: Cache position of the first key (rank 0) of each query.
        unbroken: For each query, the number of keys at consecutive cache positions from the start
            of the split. If not positive, there are none.
        KEYS: Number of keys per block.
        SPLIT: Number of keys per split.
    """
    alike = tl.max(tl.where(active, begin, -1)) == tl.min(tl.where(active, begin, 2147483647))
    together = tl.where(alike, tl.min(tl.where(active, unbroken, 2147483647)), 0)
    blocks = (tl.maximum(tl.minimum(tl.max(seen), SPLIT), 0) + KEYS - 1) // KEYS
    return tl.minimum(blocks, tl.maximum(together, 0) // KEYS), blocks


@triton.jit
def _locate(start, leading, count, listed, query, width, rank, KEYS: tl.constexpr):
    """Return the cache positions of KEYS visible keys, and which of these keys exist.

    The rank of a key is its index among all keys that the query sees. The function returns the keys
    with the ranks `rank` to `rank` + KEYS - 1. `Paths` describes how their positions are stored.
    """
    ranks = rank + tl.arange(0, KEYS)
    side_by_side = tl.load(leading + query)
    there = ranks < tl.load(count + query)
    behind = there & (ranks >= side_by_side)
    others = tl.load(
        listed + query.to(tl.int64) * width + (ranks - side_by_side), mask=behind, other=0
    )
    return tl.where(behind, others, tl.load(start + query) + ranks).to(tl.int64), there


@triton.jit
def _read(states, offsets, there, dims, dim: tl.constexpr):
    """Load keys or values, with zeros for entries that do not exist."""
    mask = there[:, None] & (dims < dim)[None, :]
    return tl.load(states + offsets[:, None] + dims[None, :], mask=mask, other=0.0)


@triton.jit
def _capped(scores, softcap):
    power = tl.exp(-2.0 * tl.abs(scores / softcap))
    size = softcap * ((1.0 - power) / (1.0 + power))
    return tl.where(scores < 0, -size, size)


@triton.jit
def _weighted(weights, values):
    """Return weights @ values.

    If the values have 16 bits, the function splits each weight into a sum of two 16-bit numbers,
    and multiplies both by the values.
    """
    if values.dtype == tl.float32:
        return tl.dot(weights, values, input_precision="ieee")
    else:
        high = weights.to(values.dtype)
        rest = (weights - high.to(tl.float32)).to(values.dtype)
        return tl.dot(high, values, tl.dot(rest, values))


@triton.jit(do_not_specialize=_UNSPECIALIZED)
def combine_splits(
    partial,
    table,
    sinks,
    out,
    queries,
    origin,
    tiles,
    heads,
    splits,
    parts,
    out_dim: tl.constexpr,
    VALUE_DIMS: tl.constexpr,
    SPLIT: tl.constexpr,
    AT_ONCE: tl.constexpr,
    SINKS: tl.constexpr,
):
    """Combine a query's partial results with the attention sink; store the output."""
    at = tl.program_id(0).to(tl.int64)
    which, head = origin + at // heads, at % heads
    seen = tl.load(table + tiles * 4 + queries * 2 + which)
    used = (seen + SPLIT - 1) // SPLIT
    ordinals, dims = at * splits + tl.arange(0, AT_ONCE), tl.arange(0, VALUE_DIMS)
    tops = partial + parts.to(tl.int64) * VALUE_DIMS
    end = at * splits + used
    top = tl.full([], float("-inf"), tl.float32)
    if SINKS:
        top = tl.load(sinks + head).to(tl.float32)
    for first in range(0, used, AT_ONCE):
        some_tops = tl.load(
            tops + first + ordinals, mask=first + ordinals < end, other=float("-inf")
        )
        top = tl.maximum(top, tl.max(some_tops))
    total = tl.full([], 0.0, tl.float32)
    if SINKS:
        total = tl.exp(tl.load(sinks + head).to(tl.float32) - top)
    summed = tl.zeros([VALUE_DIMS], tl.float32)
    for first in range(0, used, AT_ONCE):
        which_parts, there = first + ordinals, first + ordinals < end
        share = tl.exp(tl.load(tops + which_parts, mask=there, other=float("-inf")) - top)
        sums = tl.load(
            partial + which_parts[:, None] * VALUE_DIMS + dims[None, :],
            mask=there[:, None],
            other=0.0,
        )
        total += tl.sum(tl.load(tops + parts + which_parts, mask=there, other=0.0) * share)
        summed += tl.sum(sums * share[:, None], 0)
    result = tl.where(used > 0, summed / tl.where(used > 0, total, 1.0), 0.0)
    target = out + (which * heads + head) * out_dim + dims
    tl.store(target, result.to(out.dtype.element_ty), mask=dims < out_dim)
