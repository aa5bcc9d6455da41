"""Describe the order in which recurrences process the tokens of a forward pass.

A recurrence computes each token's state from the state of the token before it. In a draft tree,
the preceding token is the node's parent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from paceline.core.tree import BoolArray, IntArray
from paceline.util.compiled import compiled


class StateOrder(NamedTuple):
    """The states that each token of a forward pass reads and writes.

    Each request has a list of states, one for each position in the list. A token reads the state at
    its source position, and writes the next state to its target position. Once no later token reads
    a state, another token may use its position.

    Attributes:
        sources: Position of the state before each token, [requests, width]; -1 means the stored
            state of the request.
        targets: Position of the state after each token, [requests, width].
        num_states: Length of the longest list that a request needs.
    """

    sources: IntArray
    targets: IntArray
    num_states: int


class FoldPath(NamedTuple):
    """Tokens that a commit adds to the stored states, in text order.

    Attributes:
        columns: Columns of all requests' tokens, [n]. A column is a token's index among all tokens
            of the forward pass.
        starts: Index in `columns` of each request's first token, followed by n, [requests + 1].
        addresses: Memory addresses of `columns` and `starts`.
    """

    columns: IntArray
    starts: IntArray
    addresses: tuple[int, int]

    @staticmethod
    def of(columns: Sequence[IntArray]) -> FoldPath:
        """Return the path for the given columns, one array of columns per request."""
        starts = np.cumsum([0, *map(len, columns)], dtype=np.int64)
        joined = np.concatenate(columns).astype(np.int64, copy=False)
        return FoldPath(joined, starts, (joined.ctypes.data, starts.ctypes.data))


@dataclass(frozen=True, slots=True)
class TokenTree:
    """The tokens of a forward pass, with one row per request, in text order.

    A row consists of the request's pending tokens, draft nodes and padding, in this order. The
    width is the number of tokens in the longest row. All arrays are contiguous.

    Attributes:
        slots: Slot of each request, [requests].
        pending: Number of pending tokens of each request, [requests]; at least 1.
        nodes: Number of tree nodes of each request, [requests].
        columns: Index of each token among all tokens of the forward pass, [requests, width].
        parents: Index of each token's predecessor in the token's row, [requests, width]. A
            predecessor comes before its successors in the row. -1 means that the token directly
            follows the request's stored state.
        prompt: Number of pending tokens of each request that belong to its prompt, [requests].
        derived: Values computed from the other attributes, by name.
    """

    slots: IntArray
    pending: IntArray
    nodes: IntArray
    columns: IntArray
    parents: IntArray
    prompt: IntArray
    derived: dict[Any, Any] = field(default_factory=dict)

    @property
    def lengths(self) -> IntArray:
        """Number of tokens of each request, [requests]."""
        return self.pending + self.nodes

    @property
    def width(self) -> int:
        """Number of tokens in the longest row."""
        return int(self.columns.shape[1])

    def order(self) -> StateOrder:
        """Return which states each token reads and writes.

        The result is computed in the first call and stored.
        """
        if "order" not in self.derived:
            self.derived["order"] = StateOrder(*_order(self.parents, self.lengths))
        order: StateOrder = self.derived["order"]
        return order

    def addresses(self) -> tuple[int, ...]:
        """Return the addresses of the seven arrays that compiled code reads."""
        if "addresses" not in self.derived:
            order = self.order()
            arrays = self.slots, self.pending, self.nodes, self.columns, self.parents, *order[:2]
            # the dictionary keeps copies alive, if an array was not contiguous
            contiguous = self.derived["arrays"] = [np.ascontiguousarray(array) for array in arrays]
            self.derived["addresses"] = tuple(array.ctypes.data for array in contiguous)
        addresses: tuple[int, ...] = self.derived["addresses"]
        return addresses

    def on(self, name: str, array: IntArray | BoolArray, device: torch.device) -> Tensor:
        """Return an array as a tensor on a device, copying it only once.

        Args:
            name: Name of the array, unique within the tree.
            array: Array to copy.
            device: Device of the tensor.
        """
        key = name, device
        if key not in self.derived:
            tensor = torch.from_numpy(np.ascontiguousarray(array))
            self.derived[key] = tensor.to(device, non_blocking=True)
        result: Tensor = self.derived[key]
        return result

    def is_padding(self) -> BoolArray:
        """Return a mask of the padding tokens, bool [requests, width]."""
        return np.arange(self.width)[None] >= self.lengths[:, None]

    def accepted_path(self, accepted: Sequence[Sequence[int]]) -> FoldPath:
        """Return the pending tokens and the accepted nodes of each request.

        Args:
            accepted: Accepted nodes of each request, in text order.
        """
        rows = [
            columns[[*range(count), *(count + node for node in nodes)]]
            for columns, count, nodes in zip(
                self.columns, self.pending.tolist(), accepted, strict=True
            )
        ]
        return FoldPath.of(rows)


@compiled
def _order(parents: IntArray, lengths: IntArray) -> tuple[IntArray, IntArray, int]:
    """Return the arrays of `StateOrder`.

    If no later token reads the state of a token's parent, the token overwrites this state.
    Otherwise, the token writes to a free position or to a new one.
    """
    requests, width = parents.shape
    sources = np.full((requests, width), -1, dtype=np.int64)
    targets = np.zeros((requests, width), dtype=np.int64)
    num_states = 1
    children = np.zeros(width, dtype=np.int64)
    free = np.zeros(width + 1, dtype=np.int64)
    for request in range(requests):
        length = lengths[request]
        children[:] = 0
        for token in range(length):
            if parents[request, token] >= 0:
                children[parents[request, token]] += 1
        num_free, num_used = 0, 0
        for token in range(length):
            parent = parents[request, token]
            if parent >= 0:
                sources[request, token] = targets[request, parent]
                children[parent] -= 1
            if parent >= 0 and children[parent] == 0:
                targets[request, token] = targets[request, parent]
            elif num_free:
                num_free -= 1
                targets[request, token] = free[num_free]
            else:
                targets[request, token] = num_used
                num_used += 1
            if children[token] == 0:  # a leaf
                free[num_free] = targets[request, token]
                num_free += 1
        num_states = max(num_states, num_used)
    return sources, targets, num_states
