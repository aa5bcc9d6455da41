"""What the tests of the Triton kernel need: an interpreter's product whose sums do not depend on
a row's place; compiling it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest


def multiply_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the interpreter multiply as Triton's code for "ieee" does: each number's products summed
    one after the other.

    It calls a BLAS otherwise, which treats the first six rows, the next six and the last four of
    sixteen in different ways.
    """
    from triton.runtime import interpreter

    def dot(
        builder: Any, a: Any, b: Any, d: Any, input_precision: Any, max_num_imprecise_acc: Any
    ) -> Any:
        total = d.data.copy()
        for k in range(a.data.shape[1]):
            total += a.data[:, k : k + 1] * b.data[k : k + 1]
        return interpreter.TensorHandle(total, d.dtype.scalar)

    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_dot", dot)


def compile_for_cuda(kernel: Any, kind: str, capability: int, warps: int, **constants: Any) -> Any:
    """Compile a kernel for a device that need not be here.

    Args:
        kind: of query, key and value, as Triton spells it. capability: 80, 90, ... constants: by
            the names of its parameters.
    """
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    signature = {
        one.name: _type(one.name, kind) for one in kernel.params if one.name not in constants
    }
    pointers = [one.num for one in kernel.params if signature.get(one.name, "").startswith("*")]
    source = ASTSource(
        kernel,
        signature | dict.fromkeys(constants, "constexpr"),
        constants,
        {(number,): [["tt.divisibility", 16]] for number in pointers},
    )
    options = {"num_warps": warps, "num_stages": 1, "enable_fp_fusion": False}
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)


def _type(name: str, kind: str) -> str:
    if name in ("query", "key", "value"):
        return f"*{kind}"
    if name in ("starts", "start", "leading", "count", "listed"):
        return "*i32"
    if name in ("largest", "totals", "sums", "sinks", "out"):
        return "*fp32"
    if name in ("scaling", "softcap"):
        return "fp32"
    return "i64" if name.endswith(("_row", "_head", "_column", "_place")) else "i32"


def infinite_elsewhere(states: Any, row: int, places: list[int]) -> Any:
    """A copy of keys or values [rows, heads, places, dim] with infinities in all places of a row
    but the named ones.
    """
    changed = states.clone()
    others = np.setdiff1d(np.arange(states.shape[2]), places)
    changed[row, :, others] = float("inf")
    return changed
