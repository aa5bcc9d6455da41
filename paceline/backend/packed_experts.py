"""Represent the packed weights of all experts in a layer as one tensor.

A GGUF file stores the gate and up projections of experts as separate tensors, possibly in different
block formats. In transformers models, both are parts of a single parameter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Self

import torch
from torch import Tensor

from paceline.backend.block_formats import BF16
from paceline.backend.packed_tensor import PackedTensor
from paceline.backend.packed_weight import PackedWeight

# Function of rows, weight and bias that returns rows @ weight.T + bias.
Multiply = Callable[[Tensor, Tensor, Tensor | None], Tensor]


class PackedExperts(PackedTensor):
    """A constant bfloat16 tensor [experts, outputs, inner], stored in blocks.

    Args:
        parts: Packed weights or bfloat16 tensors, [experts * outputs of the part, inner]. An
            expert's outputs are the outputs of all parts, concatenated.
        num_experts: Number of experts.
    """

    parts: tuple[Tensor, ...]
    _experts: list[tuple[Tensor, ...] | None]

    @staticmethod
    def __new__(cls, parts: Sequence[Tensor], num_experts: int) -> PackedExperts:
        """Return a tensor that has no storage other than the blocks of its parts."""
        outer, inner = sum(map(len, parts)) // num_experts, parts[0].shape[1]
        weights: PackedExperts = Tensor._make_wrapper_subclass(
            cls, (num_experts, outer, inner), dtype=torch.bfloat16, device=torch.device("cpu")
        )
        weights.parts, weights._experts = tuple(parts), [None] * num_experts
        return weights

    def __repr__(self, **_: object) -> str:  # type: ignore[override]
        """Return the formats and shape, because torch would print all values."""
        return f"PackedExperts({', '.join(map(repr, self.parts))}, {self.shape[0]} experts)"

    @property
    def formats(self) -> tuple[str, ...]:
        """Return the name of the format of each part."""
        return tuple(
            part.block_format.name if isinstance(part, PackedWeight) else BF16.name
            for part in self.parts
        )

    def multiply_rows(self, rows: Tensor, expert: int, multiply: Multiply) -> Tensor:
        """Return rows @ weight.T for the weight of one expert.

        Args:
            rows: Rows, bfloat16 [n, inner].
            expert: Index of the expert.
            multiply: Function that multiplies rows by a packed weight.
        """
        weights = self._experts[expert]
        if weights is None:
            weights = self._experts[expert] = tuple(self._rows(part, expert) for part in self.parts)
        outputs = [multiply(rows, weight, None) for weight in weights]
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=-1)

    def _rows(self, part: Tensor, expert: int) -> Tensor:
        """Return the weight of one expert in a part, without copying it."""
        outer = len(part) // self.shape[0]
        rows = slice(expert * outer, (expert + 1) * outer)
        return part.like(None, part.blocks[rows]) if isinstance(part, PackedWeight) else part[rows]

    def same(self) -> Self:
        """Return a new tensor object that shares the blocks."""
        return type(self)(self.parts, self.shape[0])

    def unpacked(self, row_ids: Tensor | None = None) -> Tensor:
        """Return the whole tensor, [experts, outputs, inner], or some rows, [n, inner].

        Args:
            row_ids: Row indices in a tensor [experts * outputs, inner], int64 [n]. None returns the
                whole tensor.
        """
        num_experts, outer, inner = self.shape
        if row_ids is None:
            parts = [_numbers(part).view(num_experts, -1, inner) for part in self.parts]
            return torch.cat(parts, dim=1)
        expert, output = row_ids // outer, row_ids % outer
        rows, first = torch.empty(len(row_ids), inner, dtype=torch.bfloat16), 0
        for part in self.parts:
            size = len(part) // num_experts
            chosen = (output >= first) & (output < first + size)
            rows[chosen] = _numbers(part, (expert * size + output - first)[chosen])
            first += size
        return rows


def _numbers(part: Tensor, row_ids: Tensor | None = None) -> Tensor:
    """Return the given rows of a part; None returns all rows."""
    if isinstance(part, PackedWeight):
        return part.unpacked(row_ids)
    return part if row_ids is None else part[row_ids]
