"""Emit products of bfloat16 rows and weights that are stored as [inputs, outputs].

The instruction in `avx512_dot` multiplies pairs of adjacent numbers, and adds both products to the
same sum. The two weights of a pair must therefore belong to the same output. In this layout,
however, adjacent weights belong to different outputs. The emitted code therefore interleaves the
weights of two consecutive inputs (a pair of inputs). Here, the numbers are outputs:

    first input:   a0 a1 a2 a3 ...
    second input:  b0 b1 b2 b3 ...
    interleaved:   a0 b0 a1 b1 a2 b2 a3 b3 ...

For each pair of inputs, the instruction adds the product of the second input before the product of
the first.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from llvmlite import ir
from numba.core import cgutils, types

from paceline.cpu.avx512_dot import (
    INDEX,
    LINE,
    NUMBERS,
    SUMS,
    add_products,
    constant,
    where_available,
)
from paceline.cpu.emit import operation, pick, pointer, spread
from paceline.cpu.memory import FLOAT_BYTES, HALF_BYTES
from paceline.cpu.settings import ROWS_PER_PAIR

OUTER = SUMS.count  # number of outputs in a vector of sums
_WORD = ir.IntType(32)
_INPUT_BYTES = 2 * HALF_BYTES  # bytes in a pair of inputs
_ADDRESS_BYTES = 8


def interleave(vectors: int) -> Any:
    """Return an operation that interleaves weights for `add_pairs`.

    The weights of two consecutive inputs (a pair) are a0 a1 a2 ... and b0 b1 b2 ..., where the
    numbers are outputs. The operation stores them as a0 b0 a1 b1 a2 b2 ...

    Arguments of the operation:
        weights: Address of the first input's weights.
        stride: Distance between the weights of consecutive inputs, in bytes.
        count: Number of pairs of inputs.
        target: Address at which to write the interleaved weights of all pairs, without gaps.

    Args:
        vectors: Number of vectors per pair: 1, or an even number. A vector contains the interleaved
            weights of 16 outputs.
    """

    def emit(builder: Any, weights: Any, stride: Any, count: Any, target: Any) -> None:
        with cgutils.for_range(builder, count, intp=INDEX) as loop:
            pairs = _interleave(builder, weights, stride, loop.index, vectors)
            for vector, pair in enumerate(pairs):
                goal = _vector_at(builder, target, loop.index, vector, vectors)
                builder.store(pair, goal, align=2)

    return operation(types.void, (types.int64,) * 4, where_available(emit))


def add_pairs(vectors: int, interleaved: bool) -> Any:
    """Return an operation that adds products of inputs and weights to stored sums.

    The operation multiplies two consecutive inputs (a pair) at a time. It ends the process if the
    processor lacks AVX512_BF16.

    Arguments of the operation (distances are in bytes):
        num_rows: Number of rows, 1 to `ROWS_PER_PAIR`.
        rows: Address of an array with the address of each row's inputs.
        weights: Address of the first input's weights.
        stride: Distance between the weights of consecutive inputs.
        count: Number of pairs of inputs.
        sums: Address of the first row's float32 sums.
        size: Distance between the sums of consecutive rows.

    Args:
        vectors: Number of vectors of sums per row: 1, or an even number.
        interleaved: Whether the weights are the result of `interleave`. If so, the operation
            ignores `stride`.
    """

    def emit(builder: Any, num_rows: Any, *operands: Any) -> None:
        for number in range(1, ROWS_PER_PAIR + 1):
            with builder.if_then(builder.icmp_signed("==", num_rows, constant(number))):
                _add(builder, number, vectors, interleaved, _PairOperands(*operands))

    return operation(types.void, (types.int64,) * 7, where_available(emit))


class _PairOperands(NamedTuple):
    """The arguments of an `add_pairs` operation, except `num_rows`."""

    rows: Any
    weights: Any
    stride: Any
    count: Any
    sums: Any
    size: Any


def _add(
    builder: Any, num_rows: int, vectors: int, interleaved: bool, operands: _PairOperands
) -> None:
    rows, weights, stride, count, sums, size = operands
    inputs = [
        builder.load(pointer(builder, builder.add(rows, constant(_ADDRESS_BYTES * row)), INDEX))
        for row in range(num_rows)
    ]
    targets = [
        [
            pointer(
                builder,
                builder.add(
                    builder.add(sums, builder.mul(size, constant(row))),
                    constant(vector * OUTER * FLOAT_BYTES),
                ),
                SUMS,
            )
            for vector in range(vectors)
        ]
        for row in range(num_rows)
    ]
    totals = [
        [cgutils.alloca_once_value(builder, builder.load(target, align=4)) for target in own]
        for own in targets
    ]
    with cgutils.for_range(builder, count, intp=INDEX) as loop:
        if interleaved:
            pairs = [
                builder.load(_vector_at(builder, weights, loop.index, vector, vectors), align=2)
                for vector in range(vectors)
            ]
        else:
            pairs = _interleave(builder, weights, stride, loop.index, vectors)
        offset = builder.mul(loop.index, constant(_INPUT_BYTES))
        for source, own in zip(inputs, totals, strict=True):
            word = builder.load(pointer(builder, builder.add(source, offset), _WORD), align=2)
            numbers = builder.bitcast(spread(builder, word, OUTER), NUMBERS)
            for pair, total in zip(pairs, own, strict=True):
                added = add_products(builder, builder.load(total), numbers, pair)
                builder.store(added, total)
    for own_targets, own in zip(targets, totals, strict=True):
        for target, total in zip(own_targets, own, strict=True):
            builder.store(builder.load(total), target, align=4)


def _vector_at(builder: Any, address: Any, pair: Any, vector: int, vectors: int) -> Any:
    """Emit instructions that compute a pointer to a vector of interleaved weights.

    The interleaved weights are stored pair by pair. Each pair of inputs fills several vectors.

    Args:
        builder: LLVM builder.
        address: Address of the interleaved weights.
        pair: Index of the pair of inputs.
        vector: Index of the vector within the pair.
        vectors: Number of vectors per pair.
    """
    index = builder.add(builder.mul(pair, constant(vectors)), constant(vector))
    at = builder.add(address, builder.mul(index, constant(LINE)))
    return pointer(builder, at, NUMBERS)


def _interleave(builder: Any, weights: Any, stride: Any, index: Any, vectors: int) -> list[Any]:
    """Emit instructions that load and interleave the weights of one pair of inputs.

    Args:
        builder: LLVM builder.
        weights: Address of the first input's weights.
        stride: Distance between the weights of consecutive inputs, in bytes.
        index: Index of the pair.
        vectors: Number of vectors per pair: 1, or an even number.
    Returns:
        The interleaved weights. Each vector contains the weights of 16 outputs.
    """
    first = builder.add(weights, builder.mul(index, builder.add(stride, stride)))
    sources = first, builder.add(first, stride)
    width = min(vectors, 2) * OUTER  # number of outputs whose weights one load reads
    halves = ir.VectorType(ir.IntType(16), width)
    pairs = []
    for vector in range(0, vectors, width // OUTER):
        offset = constant(vector * OUTER * HALF_BYTES)
        first, second = (
            builder.load(pointer(builder, builder.add(source, offset), halves), align=2)
            for source in sources
        )
        for low in range(0, width, OUTER):
            lanes = [
                lane for output in range(low, low + OUTER) for lane in (output, width + output)
            ]
            picked = pick(builder, first, second, lanes)
            pairs.append(builder.bitcast(picked, NUMBERS))
    return pairs
