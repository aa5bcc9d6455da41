"""Run a draft head as CUDA graphs, one for each shape of the draft trees."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from paceline.cuda.graphs import GraphedFunction, GraphPool
from paceline.util.device_copies import Arrays, Pending, pack, unpack


class TreeShape(NamedTuple):
    """Arguments that determine the operations of a draft head.

    Attributes:
        num_levels: Number of levels in a draft tree, at least 1.
        num_continued: Maximum number of nodes to extend per level and request.
    """

    num_levels: int
    num_continued: int


Grow = Callable[[Tensor, Tensor, TreeShape], list[Tensor]]
_Levels = tuple[Tensor, list[Tensor]]


class _FixedTree:
    """Computes draft trees of one shape for a fixed number of requests.

    Args:
        grow: Function that computes the levels of the trees.
        states: Hidden states for the requests, [rows, hidden], at a fixed address.
        shape: Shape of the draft trees.
    Attributes:
        states: Hidden states, [rows, hidden].
        token_ids: Token chosen from each state, int64 [rows].
        graphed: Function that packs the levels, and also returns them.
    """

    def __init__(self, grow: Grow, states: Tensor, shape: TreeShape) -> None:
        self._grow, self._shape = grow, shape
        self.states = states
        self.token_ids = torch.zeros(len(states), dtype=torch.int64, device=states.device)
        self.graphed = GraphedFunction(self._compute)

    def _compute(self) -> _Levels:
        levels = self._grow(self.states, self.token_ids, self._shape)
        return pack(levels), levels


class HeadGraphs:
    """Runs a draft head as CUDA graphs.

    The number of requests is padded to a power of two.

    Args:
        grow: Function that computes the levels of draft trees from hidden states [n, hidden], token
            ids [n] and a shape.
        weights: Tensors that `grow` reads at fixed addresses.
    """

    def __init__(self, grow: Grow, weights: Sequence[Tensor]) -> None:
        self._grow, self._weights = grow, weights
        self._trees: dict[tuple[int, TreeShape], _FixedTree] = {}
        self._addresses: list[int] = []
        self._pool: GraphPool | None = GraphPool()

    def run(
        self,
        states: Tensor,
        token_ids: Tensor,
        shape: TreeShape,
        finish: Callable[[Arrays], Any],
    ) -> Pending:
        """Start computing draft trees without waiting for the device.

        Args:
            states: Hidden states, [n, hidden].
            token_ids: Token chosen from each state, int64 [n].
            shape: Shape of the draft trees.
            finish: Function that computes the result from the levels' arrays, [n, ...] each.
        """
        self._check_weights()
        count = len(token_ids)
        rows = 1 << (count - 1).bit_length()
        tree = self._trees.get((rows, shape))
        if tree is None:
            tree = _FixedTree(self._grow, states.new_zeros(rows, states.shape[1]), shape)
            self._trees[rows, shape] = tree
        tree.states[:count].copy_(states)
        tree.token_ids[:count].copy_(token_ids)
        words, levels = tree.graphed.run(self._pool, self._stop_capturing)
        # A copy, because the next drafter of this step may overwrite the result.
        return Pending(
            [words.clone()],
            lambda arrays: finish([level[:count] for level in unpack(arrays[0], levels)]),
        )

    def _check_weights(self) -> None:
        """Drop all graphs if a weight has moved to another address."""
        addresses = [tensor.data_ptr() for tensor in self._weights]
        if addresses != self._addresses:
            self._trees.clear()
            self._addresses = addresses
            if self._pool is not None:
                self._pool.renew()

    def _stop_capturing(self, reason: str) -> None:
        """Stop using CUDA graphs for this draft head, and warn."""
        self._pool = None
        self._trees.clear()
        warnings.warn(
            f"The draft head cannot be captured as a CUDA graph ({reason}). It runs without graphs,"
            " more slowly.",
            stacklevel=2,
        )
