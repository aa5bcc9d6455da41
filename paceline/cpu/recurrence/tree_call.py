"""Pass the tokens of a tree or path to a compiled recurrence, and run its tasks.

All recurrences use the threads in the same way. Each thread receives the address of the call's
arguments, and claims tasks through the counter in the arguments until none are left.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numba
import numpy as np

from paceline.core.tree import IntArray
from paceline.cpu.memory import copy
from paceline.util.compiled import as_pointer, compiled, inlined, take_number


class TreeCall:
    """The leading arguments of every recurrence along a tree.

    The first seven fields are the addresses that `TokenTree.addresses` returns. The last two fields
    are the sizes of the arrays at these addresses.
    """

    slots: int
    pending: int
    nodes: int
    columns: int
    parents: int
    sources: int
    targets: int
    requests: int
    width: int


class PathCall:
    """The leading arguments of every function that advances stored states along paths."""

    slots: int  # Int64 [requests].
    columns: int  # Columns of all paths, see `FoldPath`.
    starts: int
    requests: int


class TreeArrays(NamedTuple):
    """The arrays of a `TokenTree` and its `StateOrder`, for compiled code."""

    slots: IntArray
    pending: IntArray
    nodes: IntArray
    columns: IntArray
    parents: IntArray
    sources: IntArray
    targets: IntArray


class PathArrays(NamedTuple):
    """The arrays of a `FoldPath` and the slot of each request, for compiled code."""

    slots: IntArray
    starts: IntArray
    columns: IntArray


def counter_of(record: Any) -> int:
    """Return the offset of the task counter, the field `taken`, in a record dtype."""
    offset: int = record.fields["taken"][1]
    return offset


@compiled
def read_record(address: int, record: Any) -> Any:
    """Return the arguments at an address, as a record of the dtype `record`."""
    return numba.carray(as_pointer(address), 1, record)[0]


@inlined
def run_tasks(
    counter: int, count: int, work: Any, call: Any, tokens: Any, states: Any, lanes: Any
) -> int:
    """Claim and run tasks until none are left; return how many this thread ran.

    Args:
        counter: Address of the counter, which contains the number of tasks that threads have
            claimed.
        count: Number of tasks.
        work: Compiled function that runs a task. Its arguments are `call`, `tokens`, the index of
            the task, `states` and `lanes`.
        call: Record with the arguments of the call.
        tokens: Tokens of the call, as `TreeArrays` or `PathArrays`.
        states: Memory of this thread for the states of one task.
        lanes: Memory of this thread for a few vectors.
    """
    num_done = 0
    task = take_number(counter)
    while task < count:
        work(call, tokens, task, states, lanes)
        num_done += 1
        task = take_number(counter)
    return num_done


@compiled
def array_at(address: int, rows: int, width: int) -> Any:
    """Return the int64 array [rows, width] at an address, without copying it."""
    return numba.carray(as_pointer(address), (rows, width), np.int64)


@compiled
def list_at(address: int, count: int) -> Any:
    """Return the int64 array [count] at an address, without copying it."""
    return numba.carray(as_pointer(address), count, np.int64)


@compiled
def read_tree(call: Any) -> Any:
    """Return the arrays of a tree, whose addresses are fields of a `TreeCall`."""
    requests, width = call.requests, call.width
    return TreeArrays(
        list_at(call.slots, requests),
        list_at(call.pending, requests),
        list_at(call.nodes, requests),
        array_at(call.columns, requests, width),
        array_at(call.parents, requests, width),
        array_at(call.sources, requests, width),
        array_at(call.targets, requests, width),
    )


@compiled
def read_path(call: Any) -> Any:
    """Return the arrays of all paths, whose addresses are fields of a `PathCall`."""
    starts = list_at(call.starts, call.requests + 1)
    columns = list_at(call.columns, starts[call.requests])
    return PathArrays(list_at(call.slots, call.requests), starts, columns)


@inlined
def copy_rows(
    source: int, source_stride: int, target: int, target_stride: int, count: int, size: int
) -> None:
    """Copy rows between two addresses with different strides.

    Args:
        source: Address of the first row.
        source_stride: Distance between the rows at `source`, in bytes.
        target: Address at which to write the first row.
        target_stride: Distance between the rows at `target`, in bytes.
        count: Number of rows.
        size: Size of a row in bytes, a multiple of 32.
    """
    for row in range(count):
        copy(source + row * source_stride, target + row * target_stride, size)
