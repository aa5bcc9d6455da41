"""Compile the Triton programs for GPUs that are not present.

Needs triton, without its interpreter.
"""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from paceline.backend.interface import ScoreOptions
from tests.attention.test_by_position import lay
from tests.support.attention import Columns

pytest.importorskip("triton", reason="triton is not installed")
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver

from paceline.attention import triton_kernel, triton_programs

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="TRITON_INTERPRET is set"),
]
ROOT = Path(__file__).parent.parent.parent
PROGRAMS = ["attend_split", "attend_split, capped", "combine_splits"]


@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize("dim", [64, 128, 256])
@pytest.mark.parametrize("kind", ["bf16", "fp16", "fp32"])
def test_it_compiles_for_cuda_without_spills(
    kind: str, dim: int, capability: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compile to machine code; float32 must not use tensor cores."""
    monkeypatch.syspath_prepend(ROOT / "scripts")
    resources = importlib.import_module("kernel_resources").resources
    found = list(resources(kind, dim, capability))
    assert [one.program for one in found] == PROGRAMS
    for one in found:
        assert (one.stack, one.local) == (0, 0), one
        assert one.registers < 255
        assert one.shared <= 49152  # bytes that every GPU grants
        assert (one.products > 0) == (kind != "fp32" and one.program != "combine_splits")


class AbsentGpu:
    """The methods of Triton's driver that compilation calls."""

    def get_current_target(self) -> Any:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


class Compiling:
    """Kernel that is compiled instead of launched."""

    def __init__(self, kernel: Any) -> None:
        self.kernel, self.hashes = kernel, set[str]()

    def __getitem__(self, grid: Any) -> Any:
        return lambda *args, **options: self.hashes.add(
            self.kernel.warmup(*args, grid=grid, **options).hash
        )


def test_all_launches_run_the_same_machine_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batch size, number of heads, strides and lengths must not matter."""
    monkeypatch.setattr(driver, "_active", AbsentGpu())
    kernels = Compiling(triton_programs.attend_split), Compiling(triton_programs.combine_splits)
    monkeypatch.setattr(triton_kernel, "attend_split", kernels[0])
    monkeypatch.setattr(triton_kernel, "combine_splits", kernels[1])
    for rows, heads in (
        ([(16, 1, 0)], (4, 1)),
        ([(16, 1, 0)], (1, 1)),
        ([(1000, 1, 9), (3, 2, 4)], (32, 8)),
        ([(1, 1, 9), (3, 2, 4)], (17, 1)),
    ):
        columns = Columns(lay(rows), (*heads, 64, 64), torch.bfloat16)
        states = columns.query, columns.key, columns.value, columns.mask(), columns.order
        triton_kernel.attention_by_position(*states, ScoreOptions(scaling=len(rows)))
    assert [len(kernel.hashes) for kernel in kernels] == [1, 1]
