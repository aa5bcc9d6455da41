"""Describe blocks of a packed weight for the functions that unpack them."""

from __future__ import annotations

from typing import Any

import numba

from paceline.cpu.linear.call import ProductCall
from paceline.cpu.memory import HALF_BYTES
from paceline.cpu.thread_team import call as call_function
from paceline.util.compiled import as_pointer, inlined, load_int64, record_dtype, subroutine

PART = 32  # numbers of a part, the unit in which blocks are unpacked
PART_BYTES = PART * HALF_BYTES
_NUMBER_BYTES = 8  # of a row's number in `order`


class UnpackCall:
    """The blocks of a packed weight to unpack, and the address for the result."""

    source: int  # Address of the first block to unpack in row 0 of the file.
    row_bytes: int  # Bytes of a row in the file.
    order: int  # Address of the row in the file of each row, int64; 0 if they are in order.
    first: int  # First row.
    count: int  # Number of rows; of quads, a multiple of four.
    num_parts: int  # Parts of each row.
    target: int  # Address of the numbers, without gaps.
    # Of quads only.
    line_step: int  # Bytes from one line of a quad to the next.
    ahead: int  # Distance from the blocks to those to prefetch meanwhile; 0: no others.


UNPACK_CALL = record_dtype(UnpackCall)


@subroutine
def read_unpack_call(address: int) -> Any:
    """Return the `UnpackCall` at an address."""
    return numba.carray(as_pointer(address), 1, UNPACK_CALL)[0]


@inlined
def address_of_row(source: int, row_bytes: int, order: int, row: int) -> int:
    """Return the address of the first packed block of a weight row.

    The arguments before `row` are fields of `UnpackCall`.
    """
    number = row if order == 0 else load_int64(order + _NUMBER_BYTES * row)
    return source + number * row_bytes


@inlined
def describe(call: ProductCall, unpacking: UnpackCall) -> None:
    """Set the fields of `UnpackCall` that are the same for a whole weight."""
    unpacking.row_bytes, unpacking.order = call.blocks_row_bytes, call.order
    unpacking.source, unpacking.ahead = call.weight, 0


@inlined
def unpack_task(
    call: ProductCall, unpacking: UnpackCall, address: int, first: int, count: int, target: int
) -> int:
    """Unpack the weights that a task needs to compute its outputs.

    Args:
        call: Product to compute.
        unpacking: `UnpackCall` whose constant fields `describe` has set.
        address: Address of `unpacking`.
        first: Index of the first output.
        count: Number of outputs.
        target: Address for the unpacked values, bfloat16 [count, inner].

    Returns:
        The address that the weights of output 0 would have, if the weights of all outputs before
        `first` were unpacked in front of `target`.
    """
    unpacking.first, unpacking.count = first, count
    unpacking.num_parts, unpacking.target = call.inner // PART, target
    call_function(call.unpack, address)
    return target - first * call.inner * HALF_BYTES
