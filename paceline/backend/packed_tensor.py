"""Let torch operations read tensors whose numbers are stored in quantised blocks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

if TYPE_CHECKING:
    from torch._ops import OpOverload

_COPIES = (torch.ops.aten.detach.default, torch.ops.aten.alias.default)


class PackedTensor(Tensor):
    """A constant bfloat16 tensor on the CPU whose blocks are unpacked on each read.

    Attributes:
        selections: Functions that run a torch operation without unpacking the whole tensor. A
            function returns None for arguments that it does not support.
    """

    selections: ClassVar[Mapping[Any, Callable[..., Tensor | None]]] = {}

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
        """Run a torch operation on the tensor.

        Operations in `selections` run on the stored blocks. All others run on unpacked numbers.

        Raises:
            RuntimeError: The operation would change the tensor.
        """
        if operation._schema.is_mutable and any(
            isinstance(value, PackedTensor) and _is_written(operation, index)
            for index, value in enumerate(arguments)
        ):
            raise RuntimeError(f"{operation}: a packed weight cannot be changed; unpack the model")
        if operation in _COPIES:
            return arguments[0].same()
        selected = cls.selections.get(operation)
        result = None if selected is None else selected(*arguments, **(options or {}))
        if result is not None:
            return result
        # torch records the base of each view, which fails for a tensor made in inference mode.
        with torch.inference_mode(False) if operation.is_view else nullcontext():
            unpacked = tree_map_only(
                PackedTensor, lambda tensor: tensor.unpacked(), (arguments, options or {})
            )
            return operation(*unpacked[0], **unpacked[1])

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Return a tensor that shares the stored numbers, which never change."""
        copied = self.same()
        if getattr(self, "_is_param", False):
            copied._is_param = True  # as torch.nn.Parameter marks parameters of other classes
        return copied

    @property
    def formats(self) -> tuple[str, ...]:
        """Return the names of the formats in which the numbers are stored."""
        raise NotImplementedError

    def same(self) -> Self:
        """Return a new tensor object that shares the stored numbers."""
        raise NotImplementedError

    def unpacked(self, row_ids: Tensor | None = None) -> Tensor:
        """Return some rows or the whole tensor as bfloat16 numbers.

        Args:
            row_ids: Row indices, int64 [n]. If the tensor has several outer axes, the rows are
                numbered across these axes. None returns the whole tensor.
        """
        raise NotImplementedError


def _is_written(operation: OpOverload[..., Any], index: int) -> bool:
    schema = operation._schema.arguments
    return index < len(schema) and getattr(schema[index].alias_info, "is_write", False)
