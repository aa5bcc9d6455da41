"""Patch Triton's interpreter, and make keys that no query may read."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest


def patch_interpreter(monkeypatch: pytest.MonkeyPatch, in_order: bool = True) -> None:
    """Make Triton's interpreter run with numpy 2.4 and multiply bfloat16.

    numpy 2.4 does not convert arrays of one number to integers. The interpreter stores bfloat16 as
    uint16, and would multiply these integers.

    Args:
        monkeypatch: The pytest fixture.
        in_order: Whether the products of each number are summed in order. False leaves the sums to
            a BLAS, which treats the first six rows of sixteen, the next six and the last four
            differently.
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
    """Return numbers as float32; uint16 holds bfloat16."""
    if numbers.dtype == np.uint16:
        return (numbers.astype(np.uint32) << 16).view(np.float32)
    return numbers.astype(np.float32)


def infinite_elsewhere(states: Any, row: int, slots: list[int]) -> Any:
    """Return a copy of keys or values [rows, heads, slots, dim] with infinities.

    The slots in `slots` keep their values.
    """
    changed = states.clone()
    others = np.setdiff1d(np.arange(states.shape[2]), slots)
    changed[row, :, others] = float("inf")
    return changed
