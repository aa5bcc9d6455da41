"""Multiply rows by the weights of their experts in one compiled call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from paceline.backend.packed_experts import PackedExperts
from paceline.backend.packed_weight import PackedWeight
from paceline.backend.plain_tensors import is_plain
from paceline.cpu.job_table import reserve_jobs, run_jobs
from paceline.cpu.linear.call import PACKING, PRODUCT_CALL
from paceline.cpu.linear.dispatch import kernel_of
from paceline.cpu.memory import FLOAT_BYTES, KINDS
from paceline.cpu.packed.product import packing_of, product_job
from paceline.cpu.simd_f32x8 import WIDTH
from paceline.cpu.thread_team import TEAM

_DTYPES = (torch.bfloat16, torch.float32)
_TAKEN = PRODUCT_CALL.fields["taken"][1]


class CpuExpertProducts:
    """Implements `ExpertProducts` with compiled kernels.

    Args:
        weights: Weights of all experts, [experts, outputs, inputs], packed or contiguous.
    """

    def __init__(self, weights: Tensor) -> None:
        self._weights = weights
        parts = weights.parts if isinstance(weights, PackedExperts) else (weights.flatten(0, 1),)
        self._parts = [_PartProducts(part, weights.shape[0]) for part in parts]
        self._address = 0 if isinstance(weights, PackedExperts) else weights.data_ptr()

    @staticmethod
    def of(weights: Tensor) -> CpuExpertProducts | None:
        """Return an object that multiplies by the given weights, or None.

        The result is None if the kernels do not support the weights' dtype, layout or size.
        """
        packed = isinstance(weights, PackedExperts)
        suits = packed or (
            is_plain(weights)
            and weights.device.type == "cpu"
            and weights.dtype in _DTYPES
            and weights.is_contiguous()
            and not weights.shape[1] % WIDTH
            and not weights.shape[2] % WIDTH
        )
        return CpuExpertProducts(weights) if suits else None

    def reads(self, weights: Tensor) -> bool:
        """Return whether `multiply` would read these weights from their current address.

        The compiled call reads the weights from an address that was stored earlier.
        """
        is_in_place = not self._address or weights.data_ptr() == self._address
        return weights is self._weights and is_in_place

    def can_run(self) -> bool:
        """Return whether `multiply` is efficient in this thread at the moment.

        `multiply` needs a thread team to use several threads. Without a team, callers should
        compute the experts one by one, so that several threads can share each large product.
        """
        return torch.get_num_threads() == 1 or TEAM.of_this_thread() is not None

    def multiply(self, rows: Tensor, counts: Sequence[int], biases: Tensor | None) -> Tensor:
        """Multiply each row by the weights of the row's expert.

        Args:
            rows: Input rows sorted by expert, [n, inputs], in the dtype of the weights.
            counts: Number of rows for each expert.
            biases: Biases, [experts, outputs], or None. Packed weights require None.
        Returns:
            Products, [n, outputs].
        """
        rows, every = rows.contiguous(), np.array(counts)
        active = np.flatnonzero(every)
        starts = np.cumsum(every)[active] - every[active]
        floats = None if biases is None else biases.to(torch.float32).contiguous()
        outs = [torch.empty(len(rows), part.outer, dtype=rows.dtype) for part in self._parts]
        records = [
            part.records(active, every[active], starts, rows, out, floats)
            for part, out in zip(self._parts, outs, strict=True)
        ]
        jobs = np.empty((len(records), len(active), 2), dtype=np.int64)
        for index, (part, each) in enumerate(zip(self._parts, records, strict=True)):
            jobs[index, :, 0] = part.function
            jobs[index, :, 1] = each.ctypes.data + np.arange(len(active)) * each.itemsize
        count = len(records) * len(active)
        run_jobs(jobs.ctypes.data, count, _TAKEN, *reserve_jobs(count))
        return outs[0] if len(outs) == 1 else torch.cat(outs, dim=1)


class _PartProducts:
    """Prepares a kernel's arguments for products with one part of the weights.

    Dense weights have one part. Packed weights have one part per packed tensor.

    Args:
        part: Weights of all experts, [experts * outputs, inputs].
        num_experts: Number of experts.
    Attributes:
        outer: Number of outputs per expert.
        function: Address of the compiled kernel.
    """

    def __init__(self, part: Tensor, num_experts: int) -> None:
        self.outer, inner = len(part) // num_experts, part.shape[1]
        self._calls = np.zeros(num_experts, dtype=PRODUCT_CALL)
        self._calls["kind"] = self._calls["out_kind"] = KINDS[part.dtype]
        self._calls["inner"], self._calls["outer"] = inner, self.outer
        self._row_bytes = inner * part.element_size()
        self._out_bytes = self.outer * part.element_size()
        if isinstance(part, PackedWeight):
            first = part.like(None, part.blocks[: self.outer])
            for name, value in zip(PACKING, packing_of(first), strict=True):
                self._calls[name] = value
            job, begin, step = product_job(first), part.blocks.data_ptr(), part.blocks.shape[1]
        else:
            job, begin = kernel_of(part.dtype, inner, self.outer), part.data_ptr()
            step = self._row_bytes
        self._calls["weight"] = begin + np.arange(num_experts) * self.outer * step
        self.function = job.address

    def records(
        self,
        active: Any,
        counts: Any,
        starts: Any,
        rows: Tensor,
        out: Tensor,
        biases: Tensor | None,
    ) -> Any:
        """Return the argument records for the products of all experts that have rows.

        Args:
            active: Indices of the experts that have rows, [m].
            counts: Number of rows of each active expert, [m].
            starts: Index of each active expert's first row, [m].
            rows: Input rows, [n, inputs].
            out: Tensor for the products, [n, outputs].
            biases: Biases, float32 [experts, outputs], or None.
        """
        calls = self._calls[active]
        calls["count"] = counts
        calls["rows"] = rows.data_ptr() + starts * self._row_bytes
        calls["out"] = out.data_ptr() + starts * self._out_bytes
        calls["following"][:-1] = calls["weight"][1:]
        if biases is not None:
            calls["bias"] = biases.data_ptr() + active * (self.outer * FLOAT_BYTES)
        return calls
