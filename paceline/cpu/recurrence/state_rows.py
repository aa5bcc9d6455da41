"""Emit the inner loops of recurrences over a state matrix.

A state has one row per key dimension and one column per value dimension. A loop processes a block
of columns. In a block, each row consists of `vectors` vectors of sixteen lanes. Each lane is one
column, independent of the other lanes.

A sum over the rows consists of four partial sums. Partial sum p adds rows p, p + 4, p + 8, and so
on, in this order and with fused multiply-adds. The total is (sum 0 + sum 2) + (sum 1 + sum 3). The
number of vectors does not affect a lane's result.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import cgutils, types

from paceline.cpu.emit import exponential, floats, multiply_add, operation, pointer, spread
from paceline.cpu.memory import FLOAT_BYTES

LANES = 16  # lanes in a vector; processors without such vectors use two vectors of eight lanes
BLOCK_BYTES = LANES * FLOAT_BYTES
PARTS = 4  # number of partial sums; the number of rows is a multiple of it
_INDEX, _FLOAT = ir.IntType(64), ir.FloatType()
_VECTOR = ir.VectorType(_FLOAT, LANES)
_ZEROS = floats(0.0, LANES)


def _constant(number: int) -> Any:
    return ir.Constant(_INDEX, number)


def _at(builder: Any, base: Any, index: Any, stride: Any) -> Any:
    return builder.add(base, builder.mul(index, stride))


def _load(builder: Any, address: Any, offset: int = 0) -> Any:
    source = builder.add(address, _constant(offset))
    return builder.load(pointer(builder, source, _VECTOR), align=4)


def _store(builder: Any, address: Any, value: Any, offset: int = 0) -> None:
    target = builder.add(address, _constant(offset))
    builder.store(value, pointer(builder, target, _VECTOR), align=4)


def _repeat(builder: Any, address: Any) -> Any:
    """Emit instructions that load a float32 number, and copy it to all lanes."""
    return spread(builder, builder.load(pointer(builder, address, _FLOAT)), LANES)


def _new_sums(builder: Any, vectors: int) -> list[list[Any]]:
    return [
        [cgutils.alloca_once_value(builder, _ZEROS) for _ in range(vectors)] for _ in range(PARTS)
    ]


def _store_sums(builder: Any, sums: list[list[Any]], address: Any) -> None:
    for vector in range(len(sums[0])):
        first, second, third, fourth = (builder.load(part[vector]) for part in sums)
        total = builder.fadd(builder.fadd(first, third), builder.fadd(second, fourth))
        _store(builder, address, total, vector * BLOCK_BYTES)


def sum_rows(vectors: int) -> Any:
    """Return an operation that computes the weighted sum of a block's rows.

    A block is a range of columns of the state matrix.

    Arguments of the operation (distances are in bytes):
        state: Address of the block's first row.
        stride: Distance between consecutive rows.
        weights: Address of the rows' weights, float32 [count].
        count: Number of rows, a multiple of `PARTS`.
        out: Address at which to write the float32 sums, one per lane.

    Args:
        vectors: Number of vectors per row.
    """

    def emit(builder: Any, state: Any, stride: Any, weights: Any, count: Any, out: Any) -> None:
        sums = _new_sums(builder, vectors)
        with cgutils.for_range(builder, builder.udiv(count, _constant(PARTS)), intp=_INDEX) as loop:
            for part in range(PARTS):
                row = builder.add(builder.mul(loop.index, _constant(PARTS)), _constant(part))
                weight = _repeat(builder, _at(builder, weights, row, _constant(FLOAT_BYTES)))
                source = _at(builder, state, row, stride)
                for vector in range(vectors):
                    numbers = _load(builder, source, vector * BLOCK_BYTES)
                    total = sums[part][vector]
                    builder.store(
                        multiply_add(builder, weight, numbers, builder.load(total)), total
                    )
        _store_sums(builder, sums, out)

    return operation(types.void, (types.int64,) * 5, emit)


def advance_rows(vectors: int) -> Any:
    """Return an operation that advances a block of the state matrix by one token.

    A block is a range of columns of the state matrix. The key and the query contain one number per
    row, and the update contains one number per lane (column). In each lane, the operation computes:

        new row = row * decay + key * update
        output  = sum of query * new row over all rows

    The operation rounds after the multiplication by the decay. The rest of the first formula is a
    fused multiply-add, which rounds once more.

    Arguments of the operation (distances are in bytes):
        source: Address of the block's first row before the token.
        stride: Distance between consecutive rows at `source`.
        target: Address at which to write the block after the token, in contiguous rows.
        key: Address of the key, float32 [count].
        query: Address of the query, float32 [count].
        decay: Address of the first row's decay, float32.
        decay_stride: Distance between the decays of consecutive rows. 0 if all rows have the same
            decay.
        count: Number of rows, a multiple of `PARTS`.
        update: Address of the update, one float32 number per lane. The operation writes the output
            directly after the update.

    Args:
        vectors: Number of vectors per row.
    """

    def emit(builder: Any, *operands: Any) -> None:
        source, stride, target, key, query, decay, decay_stride, count, update = operands
        updates = [_load(builder, update, vector * BLOCK_BYTES) for vector in range(vectors)]
        sums = _new_sums(builder, vectors)
        with cgutils.for_range(builder, builder.udiv(count, _constant(PARTS)), intp=_INDEX) as loop:
            for part in range(PARTS):
                row = builder.add(builder.mul(loop.index, _constant(PARTS)), _constant(part))
                offset = builder.mul(row, _constant(FLOAT_BYTES))
                number, weight = (
                    _repeat(builder, builder.add(address, offset)) for address in (key, query)
                )
                factor = _repeat(builder, _at(builder, decay, row, decay_stride))
                before = _at(builder, source, row, stride)
                after = _at(builder, target, row, _constant(vectors * BLOCK_BYTES))
                for vector in range(vectors):
                    shift = vector * BLOCK_BYTES
                    numbers = builder.fmul(_load(builder, before, shift), factor)
                    numbers = multiply_add(builder, number, updates[vector], numbers)
                    _store(builder, after, numbers, shift)
                    total = sums[part][vector]
                    builder.store(
                        multiply_add(builder, weight, numbers, builder.load(total)), total
                    )
        _store_sums(builder, sums, builder.add(update, _constant(vectors * BLOCK_BYTES)))

    return operation(types.void, (types.int64,) * 9, emit)


def _scan(builder: Any, *operands: Any) -> None:
    source, stride, target, rates, rate_stride, key, query, count, lanes = operands
    steps, inputs = _load(builder, lanes), _load(builder, lanes, BLOCK_BYTES)
    total = cgutils.alloca_once_value(builder, _ZEROS)
    with cgutils.for_range(builder, count, intp=_INDEX) as loop:
        rate = _load(builder, _at(builder, rates, loop.index, rate_stride))
        decay = exponential(builder, builder.fmul(steps, rate))
        offset = builder.mul(loop.index, _constant(FLOAT_BYTES))
        number, weight = (_repeat(builder, builder.add(a, offset)) for a in (key, query))
        numbers = builder.fmul(_load(builder, _at(builder, source, loop.index, stride)), decay)
        numbers = multiply_add(builder, number, inputs, numbers)
        _store(builder, _at(builder, target, loop.index, _constant(BLOCK_BYTES)), numbers)
        builder.store(multiply_add(builder, weight, numbers, builder.load(total)), total)
    _store(builder, lanes, builder.load(total), 2 * BLOCK_BYTES)


# Advances the states of sixteen channels by one token of a selective scan, and computes the output.
# Each row becomes row * exp(step * rate) + key * input, where step, rate and input depend on the
# channel. The first arguments are the state before the token, the distance between its rows in
# bytes, and the state after the token, whose rows are contiguous. Next come the rates (<= 0), the
# distance between their rows in bytes, the key, the query and the number of rows. The last argument
# is an address with the step sizes (>= 0) and the inputs. The output is written after the inputs.
scan_rows = operation(types.void, (types.int64,) * 9, _scan)
