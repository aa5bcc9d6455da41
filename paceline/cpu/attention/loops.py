"""Define the inner loops that several attention kernels use.

Rows of float32 values have a fixed stride. Sizes and strides are in bytes, and are multiples of 32.
The number of rows that a loop processes at once does not affect the order of summation.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from paceline.cpu import simd_f32x8, softmax_weighted_sum
from paceline.cpu.attention.call import AttentionCall
from paceline.cpu.memory import FLOAT_BYTES, VECTOR_BYTES
from paceline.util.compiled import inlined, load_int64

_GROUP_BYTES = softmax_weighted_sum.VECTORS * softmax_weighted_sum.STEP
_add_group, _add_vector = (
    softmax_weighted_sum.add_weighted(vectors) for vectors in (softmax_weighted_sum.VECTORS, 1)
)


@inlined
def cap(softcap: np.float32, first: int, last: int) -> None:
    """Apply a soft cap: replace scores by softcap * tanh(score / softcap).

    Args:
        softcap: Limit of the absolute value of a score.
        first: Address of the first score.
        last: Address after the last score.
    """
    bound, ones, zeros = (
        simd_f32x8.splat(softcap),
        simd_f32x8.splat(np.float32(1.0)),
        simd_f32x8.splat(np.float32(0.0)),
    )
    for source in range(first, last, VECTOR_BYTES):
        ratio = simd_f32x8.divide(simd_f32x8.load(source), bound)
        size = simd_f32x8.larger(ratio, simd_f32x8.subtract(zeros, ratio))
        shrunk = simd_f32x8.exp(simd_f32x8.subtract(zeros, simd_f32x8.add(size, size)))
        tanh = simd_f32x8.divide(simd_f32x8.subtract(ones, shrunk), simd_f32x8.add(ones, shrunk))
        simd_f32x8.store(source, simd_f32x8.multiply(bound, simd_f32x8.with_sign(tanh, ratio)))


@inlined
def load_sink(call: AttentionCall, head: int) -> Any:
    """Return the attention sink of a query head, or -inf if the call has no sinks."""
    if call.sinks:
        return simd_f32x8.load_float(call.sinks + head * FLOAT_BYTES)
    return np.float32(-np.inf)


@inlined
def add_sink(total: np.float32, sink: np.float32, largest: np.float32) -> Any:
    """Add the weight of an attention sink to a total of softmax weights.

    Args:
        total: Sum of the softmax weights.
        sink: Score of the sink, or -inf.
        largest: Largest score, which was subtracted from all scores.
    """
    weight = simd_f32x8.exp(simd_f32x8.splat(np.float32(sink - largest)))
    return np.float32(total + simd_f32x8.largest(weight))


@inlined
def add_values(
    weights: int,
    values: int,
    stride: int,
    count: int,
    sums: int,
    size: int,
    queries: int,
    is_half: bool,
) -> None:
    """Add weighted value vectors to the sums of up to four queries.

    Args:
        weights: Address of an array that contains the address of each query's float32 weights.
        values: Address of the value vectors.
        stride: Distance between consecutive value vectors, in bytes.
        count: Number of value vectors.
        sums: Address of the float32 sums, which are stored query by query.
        size: Size of one query's sums, in bytes.
        queries: Number of queries.
        is_half: Whether the value vectors are bfloat16 rather than float32. If so, `size` must be a
            multiple of 64.
    """
    in_groups = size // _GROUP_BYTES * _GROUP_BYTES
    in_vectors = size // softmax_weighted_sum.STEP * softmax_weighted_sum.STEP
    shift = 1 if is_half else 0
    for offset in range(0, in_groups, _GROUP_BYTES):
        source = values + (offset >> shift)
        _add_group(queries, shift, weights, source, stride, count, sums + offset, size)
    for offset in range(in_groups, in_vectors, softmax_weighted_sum.STEP):
        source = values + (offset >> shift)
        _add_vector(queries, shift, weights, source, stride, count, sums + offset, size)
    for query in range(queries):
        weight_row = load_int64(weights + 8 * query)
        for offset in range(in_vectors, size, VECTOR_BYTES):
            target = sums + query * size + offset
            _add_lanes(weight_row, values + offset, stride, count, target)


@inlined
def _add_lanes(weights: int, value: int, stride: int, count: int, target: int) -> None:
    """Add weighted values to one query's sums in eight value dimensions.

    Args:
        weights: Address of the query's float32 weights.
        value: Address of these eight dimensions in the first float32 value vector.
        stride: Distance between consecutive value vectors, in bytes.
        count: Number of value vectors.
        target: Address of the eight float32 sums.
    """
    total = simd_f32x8.load(target)
    for offset in range(0, count * FLOAT_BYTES, FLOAT_BYTES):
        weight = simd_f32x8.splat(simd_f32x8.load_float(weights + offset))
        total = simd_f32x8.fused(weight, simd_f32x8.load(value), total)
        value += stride
    simd_f32x8.store(target, total)
