"""Represent a weight stored in blocks as a tensor of bfloat16 numbers.

A backend's matrix products read the blocks directly. Other torch operations unpack the weight
first, which takes time and memory. The results are the same as with an unpacked weight.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from paceline.backend.block_formats import BlockFormat

if TYPE_CHECKING:
    from torch._ops import OpOverload

_ATEN = torch.ops.aten


class PackedWeight(Tensor):
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

    # Only operations of torch's core are intercepted, not its functions.
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls,
        operation: OpOverload[..., Any],
        kinds: Sequence[type],
        arguments: Sequence[Any] = (),
        options: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run a torch operation on the weight.

        Operations that only select rows run on the blocks, all others on unpacked values.

        Raises:
            RuntimeError: The operation would change the weight.
        """
        if operation._schema.is_mutable and any(
            isinstance(value, cls) and _is_written(operation, index)
            for index, value in enumerate(arguments)
        ):
            raise RuntimeError(f"{operation}: a packed weight cannot be changed; unpack the model")
        selected = _SELECTIONS.get(operation)
        result = None if selected is None else selected(*arguments, **(options or {}))
        if result is not None:
            return result
        unpacked = tree_map_only(cls, lambda weight: weight.unpacked(), (arguments, options or {}))
        return operation(*unpacked[0], **unpacked[1])

    def __deepcopy__(self, memo: dict[int, Any]) -> PackedWeight:
        """Return a weight that shares the blocks, which never change."""
        return _with_flags(self.like(self.order), self)

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        """Return the format and shape, because torch would print all values."""
        return f"PackedWeight({self.block_format.name}, {list(self.shape)})"

    def like(self, order: Tensor | None, blocks: Tensor | None = None) -> PackedWeight:
        """Return a weight with different rows in the same block format."""
        own = self.blocks if blocks is None else blocks
        return PackedWeight(own, self.block_format, self.shape[1], order)

    def unpacked(self, row_ids: Tensor | None = None) -> Tensor:
        """Return the given rows, by default all, as bfloat16 [n, inner]."""
        # By name: the kernels are in a layer above this one, and take seconds to import.
        numbers: Tensor = import_module("paceline.cpu.backend").CPU.unpack(self, row_ids)
        return numbers


def _is_written(operation: OpOverload[..., Any], index: int) -> bool:
    schema = operation._schema.arguments
    return index < len(schema) and getattr(schema[index].alias_info, "is_write", False)


def _with_flags(weight: PackedWeight, source: Tensor) -> PackedWeight:
    if getattr(source, "_is_param", False):
        weight._is_param = True  # as torch.nn.Parameter marks parameters of other classes
    return weight


def _same(weight: PackedWeight) -> PackedWeight:
    return weight.like(weight.order)


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


_SELECTIONS: dict[Any, Callable[..., Tensor | None]] = {
    _ATEN.detach.default: _same,
    _ATEN.alias.default: _same,
    _ATEN.embedding.default: _embed,
    _ATEN.index.Tensor: _index,
    _ATEN.index_select.default: _select_rows,
    _ATEN.slice.Tensor: _slice,
}
