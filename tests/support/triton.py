"""Support for tests of the Triton kernel: a mended interpreter and keys that no query may read."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest


def mend_interpreter(monkeypatch: pytest.MonkeyPatch, in_order: bool = True) -> None:
    """Have Triton's interpreter run with numpy 2.4 and multiply bfloat16.

    numpy 2.4 makes no integer of an array of one number. The interpreter keeps bfloat16 as uint16,
    and multiplies these integers.

    Args:
        monkeypatch: pytest's.
        in_order: Whether each number's products are summed one after the other. False leaves them
            to a BLAS, which treats the first six rows, the next six and the last four of sixteen
            in different ways.
    """
    from triton.runtime import interpreter

    original = interpreter._patch_lang_tensor
    product = _product_in_order if in_order else np.matmul

    def patch(tensor: Any, scope: Any) -> None:
        original(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    def dot(
        builder: Any, a: Any, b: Any, d: Any, input_precision: Any, max_num_imprecise_acc: Any
    ) -> Any:
        total = d.data + product(_float32(a.data), _float32(b.data))
        return interpreter.TensorHandle(total, d.dtype.scalar)

    monkeypatch.setattr(interpreter, "_patch_lang_tensor", patch)
    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_dot", dot)


def _product_in_order(a: Any, b: Any) -> Any:
    total = np.zeros((a.shape[0], b.shape[1]), dtype=a.dtype)
    for k in range(a.shape[1]):
        total += a[:, k : k + 1] * b[k : k + 1]
    return total


def _float32(numbers: Any) -> Any:
    """Return float16, float32, or bfloat16 kept as uint16, in float32."""
    if numbers.dtype == np.uint16:
        return (numbers.astype(np.uint32) << 16).view(np.float32)
    return numbers.astype(np.float32)


def infinite_elsewhere(states: Any, row: int, places: list[int]) -> Any:
    """A copy of keys or values [rows, heads, places, dim] with infinities in all places of a row
    but the named ones.
    """
    changed = states.clone()
    others = np.setdiff1d(np.arange(states.shape[2]), places)
    changed[row, :, others] = float("inf")
    return changed
