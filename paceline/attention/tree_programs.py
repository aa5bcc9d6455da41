"""Define Triton programs for attention over draft trees; see `tree_kernel`."""

from __future__ import annotations

import triton
import triton.language as tl

# Arguments that differ between buckets, and must not cause another compilation.
_UNSPECIALIZED = [
    "query_row", "query_head", "query_column", "split_keys", "columns", "splits", "key_row",
    "key_head", "key_column", "value_row", "value_head", "value_column",
]  # fmt: skip


@triton.jit(do_not_specialize=_UNSPECIALIZED)
def attend_tree(
    query,
    key,
    value,
    partial,
    out,
    cached,
    block,
    positions,
    key_positions,
    key_rows,
    query_row,
    query_head,
    query_column,
    store_row: tl.int64,
    store_head: tl.int64,
    value_store_row: tl.int64,
    value_store_head: tl.int64,
    split_keys,
    splits,
    columns,
    scaling,
    key_heads: tl.constexpr,
    groups: tl.constexpr,
    dim: tl.constexpr,
    value_dim: tl.constexpr,
    window: tl.constexpr,
    chunk: tl.constexpr,
    IS_SPLIT: tl.constexpr,
    DIMS: tl.constexpr,
    VALUE_DIMS: tl.constexpr,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
):
    """Compute attention between one tile of queries and one split of a row's keys.

    A split is a range of the row's keys. A column is a token of the row, with one query per query
    head. A tile contains the queries of several columns, for the query heads that share one key
    head.

    The index i of a key determines which columns see the key. A sliding window or chunked attention
    may also hide the key.

        i < cached[row]:       The key belongs to the text. All columns see it.
        i = cached[row] + j:   The key belongs to column j. Column c sees it if block[row, c, j].

    If the row has only one split, the program stores the output. Otherwise, the program stores
    three values per query: the largest score, the sum of the exponentials, and the weighted sum of
    the values. `tree_kernel.attention_over_tree` sets all arguments.
    """
    row, head = tl.program_id(0) // key_heads, tl.program_id(0) % key_heads
    split = tl.program_id(2)
    ordinal = tl.program_id(1) * QUERIES + tl.arange(0, QUERIES)
    real = ordinal < columns * groups
    column = tl.where(real, ordinal // groups, 0)
    member = head * groups + ordinal % groups
    dims, value_dims = tl.arange(0, DIMS), tl.arange(0, VALUE_DIMS)
    at = row.to(tl.int64) * query_row + member * query_head + column * query_column
    states = tl.load(
        query + at[:, None] + dims[None, :], mask=real[:, None] & (dims < dim)[None, :], other=0.0
    )
    key_row = tl.load(key_rows + row)
    key += key_row * store_row + head * store_head
    value += key_row * value_store_row + head * value_store_head
    text = tl.load(cached + row).to(tl.int32)
    own = tl.load(positions + row * columns + column)
    first = split * split_keys
    stop = tl.minimum(first + split_keys, text + columns)
    top = tl.full([QUERIES], float("-inf"), tl.float32)
    total = tl.zeros([QUERIES], tl.float32)
    summed = tl.zeros([QUERIES, VALUE_DIMS], tl.float32)
    begin = first
    if window > 0:
        begin = tl.maximum(first, (text - window) // KEYS * KEYS)
    for start in tl.range(begin, stop, KEYS, num_stages=2):
        at_key = start + tl.arange(0, KEYS)
        exists = at_key < text + columns
        offset = at_key - text
        in_tree = exists & (offset >= 0)
        seen = (offset < 0)[None, :] | (
            tl.load(
                block + (row * columns + column[:, None]) * columns + offset[None, :],
                mask=in_tree[None, :],
                other=0,
            )
            != 0
        )
        if window > 0 or chunk > 0:
            key_position = tl.where(
                in_tree,
                tl.load(key_positions + row * columns + offset, mask=in_tree, other=0),
                at_key,
            )
            if window > 0:
                seen = seen & (key_position[None, :] > own[:, None] - window)
            else:
                seen = seen & (key_position[None, :] // chunk == own[:, None] // chunk)
        keys = tl.load(
            key + at_key[:, None].to(tl.int64) * dim + dims[None, :],
            mask=exists[:, None] & (dims < dim)[None, :],
            other=0.0,
        )
        values = tl.load(
            value + at_key[:, None].to(tl.int64) * value_dim + value_dims[None, :],
            mask=exists[:, None] & (value_dims < value_dim)[None, :],
            other=0.0,
        )
        scores = tl.dot(states, tl.trans(keys), input_precision="ieee") * scaling
        scores = tl.where(seen & exists[None, :], scores, float("-inf"))
        new_top = tl.maximum(top, tl.max(scores, 1))
        # 0 avoids a difference of infinities where a query has seen no key yet.
        base = tl.where(new_top == float("-inf"), 0.0, new_top)
        weights = tl.exp(scores - base[:, None])
        shrink = tl.exp(top - base)
        total = total * shrink + tl.sum(weights, 1)
        summed = summed * shrink[:, None] + tl.dot(
            weights.to(values.dtype), values, input_precision="ieee"
        )
        top = new_top
    output = (row * columns + column).to(tl.int64) * (key_heads * groups) + member
    if not IS_SPLIT:
        result = summed / tl.where(total > 0, total, 1.0)[:, None]
        tl.store(
            out + output[:, None] * value_dim + value_dims[None, :],
            result.to(out.dtype.element_ty),
            mask=real[:, None] & (value_dims < value_dim)[None, :],
        )
    else:
        output = output * splits + split
        sums = partial + output[:, None] * (VALUE_DIMS + 2)
        tl.store(sums + value_dims[None, :], summed, mask=real[:, None])
        ends = partial + output * (VALUE_DIMS + 2) + VALUE_DIMS
        tl.store(ends, top, mask=real)
        tl.store(ends + 1, total, mask=real)


@triton.jit(do_not_specialize=_UNSPECIALIZED)
def combine_tree(
    partial,
    out,
    splits,
    value_dim: tl.constexpr,
    ROUNDED_SPLITS: tl.constexpr,
    VALUE_DIMS: tl.constexpr,
):
    """Combine the partial results for one query and head, and store the output."""
    output = tl.program_id(0).to(tl.int64)
    split, dims = tl.arange(0, ROUNDED_SPLITS), tl.arange(0, VALUE_DIMS)
    there = split < splits
    base = partial + (output * splits + split) * (VALUE_DIMS + 2)
    tops = tl.load(base + VALUE_DIMS, mask=there, other=float("-inf"))
    top = tl.max(tops)
    share = tl.exp(tops - tl.where(top == float("-inf"), 0.0, top))
    total = tl.sum(share * tl.load(base + VALUE_DIMS + 1, mask=there, other=0.0))
    sums = tl.load(base[:, None] + dims[None, :], mask=there[:, None], other=0.0)
    result = tl.sum(share[:, None] * sums, 0) / tl.where(total > 0, total, 1.0)
    tl.store(
        out + output * value_dim + dims, result.to(out.dtype.element_ty), mask=dims < value_dim
    )


@triton.jit(do_not_specialize=_UNSPECIALIZED)
def store_states(
    keys,
    values,
    key_store,
    value_store,
    cache_positions,
    rows,
    key_row,
    key_head,
    key_column,
    value_row,
    value_head,
    value_column,
    store_row: tl.int64,
    store_head: tl.int64,
    value_store_row: tl.int64,
    value_store_head: tl.int64,
    columns,
    dim: tl.constexpr,
    value_dim: tl.constexpr,
    DIMS: tl.constexpr,
    VALUE_DIMS: tl.constexpr,
):
    """Write the key and value of one token (column) and head to the token's slot."""
    row, column = tl.program_id(0) // columns, tl.program_id(0) % columns
    head = tl.program_id(1)
    position = tl.load(cache_positions + row * columns + column).to(tl.int64)
    store = tl.load(rows + row * columns + column)
    dims, value_dims = tl.arange(0, DIMS), tl.arange(0, VALUE_DIMS)
    if position >= 0:
        source = keys + row * key_row + head * key_head + column * key_column
        target = key_store + store * store_row + head * store_head + position * dim
        tl.store(target + dims, tl.load(source + dims, mask=dims < dim), mask=dims < dim)
        source = values + row * value_row + head * value_head + column * value_column
        target = value_store + store * value_store_row + head * value_store_head
        target += position * value_dim
        inside = value_dims < value_dim
        tl.store(target + value_dims, tl.load(source + value_dims, mask=inside), mask=inside)
