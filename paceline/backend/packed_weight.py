"""Represent a weight stored in blocks as a tensor of bfloat16 numbers.

A backend's matrix products read the blocks directly. Other torch operations unpack the weight
first, which takes time and memory. The results are the same as with an unpacked weight.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any, ClassVar

import torch
from torch import Tensor

from paceline.backend.block_formats import BlockFormat
from paceline.backend.packed_tensor import PackedTensor

_ATEN = torch.ops.aten


def _embed(weight: Tensor, token_ids: Tensor, *_: Any, **__: Any) -> Tensor | None:
    if not isinstance(weight, PackedWeight):
        return None
    rows = weight.unpacked(token_ids.reshape(-1))
    return rows.view(*token_ids.shape, weight.shape[1])


def _index(weight: PackedWeight, indices: Sequence[Tensor | None]) -> Tensor | None:
    first = indices[0]
    if len(indices) != 1 or first is None or first.dtype not in (torch.int64, torch.int32):
        return None
    return _embed(weight, torch.where(first < 0, first + len(weight), first))


def _select_rows(weight: PackedWeight, dim: int, row_ids: Tensor) -> Tensor | None:
    return _index(weight, [row_ids]) if dim in (0, -2) else None


def _slice(
    weight: PackedWeight,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> Tensor | None:
    if dim not in (0, -2):
        return None
    rows = slice(start, end, step)
    if weight.order is not None:
        return weight.like(weight.order[rows])
    return weight.like(None, weight.blocks[rows]) if step == 1 else None


class PackedWeight(PackedTensor):
    """A constant bfloat16 matrix, stored in blocks.

    Args:
        blocks: Packed rows, uint8 [rows in the file, bytes per row], on the CPU, without gaps
            between rows.
        block_format: Format of the blocks.
        inner: Number of values per row.
        order: Index of each row in `blocks`, int64 [rows]; None if the rows are in order.
    """

    blocks: Tensor
    block_format: BlockFormat
    order: Tensor | None
    selections: ClassVar = {
        _ATEN.embedding.default: _embed,
        _ATEN.index.Tensor: _index,
        _ATEN.index_select.default: _select_rows,
        _ATEN.slice.Tensor: _slice,
    }

    @staticmethod
    def __new__(
        cls, blocks: Tensor, block_format: BlockFormat, inner: int, order: Tensor | None = None
    ) -> PackedWeight:
        """Return a tensor that has no storage other than the blocks."""
        rows = len(blocks if order is None else order)
        weight: PackedWeight = Tensor._make_wrapper_subclass(
            cls, (rows, inner), dtype=torch.bfloat16, device=torch.device("cpu")
        )
        weight.blocks, weight.block_format, weight.order = blocks, block_format, order
        return weight

    @property
    def formats(self) -> tuple[str, ...]:
        """Return the name of the block format."""
        return (self.block_format.name,)

    def same(self) -> PackedWeight:
        """Return a new tensor object that shares the blocks."""
        return self.like(self.order)

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        """Return the format and shape, because torch would print all values."""
        return f"PackedWeight({self.block_format.name}, {list(self.shape)})"

    def like(self, order: Tensor | None, blocks: Tensor | None = None) -> PackedWeight:
        """Return a weight in the same block format, with other rows or another row order.

        Args:
            order: Index of each row in the blocks, int64 [rows]; None if the rows are in order.
            blocks: Packed rows, as in `PackedWeight`; None uses this weight's blocks.
        """
        own = self.blocks if blocks is None else blocks
        return PackedWeight(own, self.block_format, self.shape[1], order)

    def unpacked(self, row_ids: Tensor | None = None) -> Tensor:
        """Return the given rows as bfloat16 [n, inner]; None returns all rows."""
        # Imported by name, because the kernels belong to a higher layer and take seconds to import.
        numbers: Tensor = import_module("paceline.cpu.backend").CPU.unpack(self, row_ids)
        return numbers
