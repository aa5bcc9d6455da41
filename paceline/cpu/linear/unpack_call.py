"""Describe a packed weight's blocks for the functions that unpack them."""

from __future__ import annotations

from typing import Any

import numba

from paceline.cpu.linear.call import ProductCall
from paceline.cpu.memory import HALF_BYTES
from paceline.cpu.thread_team import call as call_function
from paceline.util.compiled import as_pointer, inlined, load_int64, record_dtype, subroutine

PART = 32  # numbers in a part, the unit in which blocks are unpacked
PART_BYTES = PART * HALF_BYTES
_NUMBER_BYTES = 8  # bytes in a row number in `order`


class UnpackCall:
    """The arguments of functions that unpack rows of a packed weight."""

    source: int  # Address of the first block to unpack in row 0 of the file.
    row_bytes: int  # Size of a packed row in bytes.
    order: int  # Address of each row's number in the file, int64; 0 if all are in order.
    first: int  # Index of the first row to unpack.
    count: int  # Number of rows to unpack; for quads, a multiple of four.
    num_parts: int  # Number of parts to unpack per row.
    target: int  # Address at which to write the bfloat16 numbers, without gaps.
    # For quads only.
    line_step: int  # Distance between consecutive lines of a quad, in bytes.
    ahead: int  # Distance from the blocks to the blocks to prefetch, in bytes.


UNPACK_CALL = record_dtype(UnpackCall)


@subroutine
def read_unpack_call(address: int) -> Any:
    """Return the `UnpackCall` at an address."""
    return numba.carray(as_pointer(address), 1, UNPACK_CALL)[0]


@inlined
def address_of_row(source: int, row_bytes: int, order: int, row: int) -> int:
    """Return the address of a row's first block in a packed weight.

    Args:
        source: Address of the first block in row 0 of the file.
        row_bytes: Size of a packed row in bytes.
        order: Address of an int64 array with each row's index in the file. 0 if the file stores
            the rows in order.
        row: Index of the row in the weight.
    """
    number = row if order == 0 else load_int64(order + _NUMBER_BYTES * row)
    return source + number * row_bytes


@inlined
def describe(call: ProductCall, unpacking: UnpackCall) -> None:
    """Set the fields of `unpacking` that are the same for all tasks of a product."""
    unpacking.row_bytes, unpacking.order = call.blocks_row_bytes, call.order
    unpacking.source, unpacking.ahead = call.weight, 0


@inlined
def unpack_task(
    call: ProductCall, unpacking: UnpackCall, address: int, first: int, count: int, target: int
) -> int:
    """Unpack the weights that a task needs to compute its outputs.

    Args:
        call: Arguments of the matrix product.
        unpacking: Record that `describe` has initialised.
        address: Address of `unpacking`.
        first: Index of the first output.
        count: Number of outputs.
        target: Address at which to write the unpacked weights, bfloat16 [count, inner].
    Returns:
        The address at which the weights of output 0 would be. The weights of output o are o rows
        after this address. Only the task's outputs may be read.
    """
    unpacking.first, unpacking.count = first, count
    unpacking.num_parts, unpacking.target = call.inner // PART, target
    call_function(call.unpack, address)
    return target - first * call.inner * HALF_BYTES
