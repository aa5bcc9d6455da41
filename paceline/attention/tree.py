"""Describe which keys each query token of a batch sees, as tensors on the device."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from paceline.attention.reach import Reach


@dataclass(frozen=True, slots=True)
class TreeVisibility:
    """Inputs of attention over the pending tokens and draft-tree nodes of a batch.

    Each column of a row is a pending token or a node.

    Attributes:
        cached: Number of tokens in the cache before the forward pass, int64 [rows]; all columns
            see these tokens.
        block: bool [rows, columns, columns]. Entry [row, c, j] is True if column c sees cache
            position cached[row] + j.
        positions: Text position of each column, int64 [rows, columns].
        key_positions: Text position of each cache position after the cached tokens, int64 [rows,
            columns]; read only if the reach is limited.
        key_rows: Row of the key tensor at which the keys of each batch row begin, int64 [rows].
        reach: How far back the layer attends.
    """

    cached: Tensor
    block: Tensor
    positions: Tensor
    key_positions: Tensor
    key_rows: Tensor
    reach: Reach
