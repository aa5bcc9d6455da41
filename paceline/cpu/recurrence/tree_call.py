"""Pass the tokens of a tree to compiled recurrences."""

from __future__ import annotations

from typing import Any, NamedTuple

import numba
import numpy as np

from paceline.core.tree import IntArray
from paceline.util.compiled import as_pointer, compiled

# Fields of `TokenTree.addresses`, in order; every call of a recurrence begins with them.


class TreeArrays(NamedTuple):
    """The arrays of a `TokenTree` and its `StateOrder`."""

    slots: IntArray
    pending: IntArray
    nodes: IntArray
    columns: IntArray
    parents: IntArray
    sources: IntArray
    targets: IntArray


@compiled
def array_at(address: int, rows: int, width: int) -> Any:
    """Return the int64 array [rows, width] at an address."""
    return numba.carray(as_pointer(address), (rows, width), np.int64)


@compiled
def list_at(address: int, count: int) -> Any:
    """Return the int64 array [count] at an address."""
    return numba.carray(as_pointer(address), count, np.int64)


@compiled
def read_tree(call: Any) -> Any:
    """Return the arrays of a call that has the fields of `TokenTree.addresses`."""
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
