"""Describe what the columns of a bucket see, with lengths on the device."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from paceline.attention.reach import Reach


@dataclass(frozen=True, slots=True)
class TreeVisibility:
    """Hold the inputs of attention over pending tokens and nodes.

    Attributes:
        cached: int64 [rows], tokens in the cache before the forward pass; all columns see them.
        block: bool [rows, columns, columns], whether a column sees the cache position at this
            offset after the cached tokens.
        positions: int64 [rows, columns], text position of each column.
        key_positions: int64 [rows, columns], text position of each cache position after the cached
            ones; read only for a limited reach.
        reach: How far back the layer looks.
    """

    cached: Tensor
    block: Tensor
    positions: Tensor
    key_positions: Tensor
    reach: Reach
