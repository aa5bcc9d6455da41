"""Multiply rows by a weight, using the compiled kernel that fits its shape."""

from __future__ import annotations

import torch
from torch import Tensor

from paceline.cpu import amx, avx512_dot
from paceline.cpu.linear import dotted, tiled
from paceline.cpu.linear.call import run_product
from paceline.cpu.linear.kernel import multiply
from paceline.cpu.linear.transposed import OUTER, multiply_transposed
from paceline.cpu.memory import KINDS
from paceline.cpu.simd_f32x8 import WIDTH
from paceline.cpu.thread_team import TeamJob


def product(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return rows @ weight.T + bias; each row's result depends on that row only.

    Args:
        rows: Tensor [..., inner] on the CPU.
        weight: Tensor [outer, inner] on the CPU, with the dtype of `rows`; see `takes_weight`.
        bias: Tensor [outer], or None.
    """
    outer, inner = weight.shape
    rows, dtype = rows.contiguous(), rows.dtype
    count = rows.numel() // inner
    out = torch.empty(
        *rows.shape[:-1], outer, dtype=dtype if dtype == torch.bfloat16 else torch.float32
    )
    float_bias = None if bias is None else bias.to(torch.float32).contiguous()
    addresses = (
        rows.data_ptr(),
        weight.data_ptr(),
        0 if float_bias is None else float_bias.data_ptr(),
        out.data_ptr(),
    )
    kinds, sizes = (KINDS[dtype], KINDS[out.dtype]), (count, inner, outer)
    is_transposed = not weight.is_contiguous()
    kernel = multiply_transposed if is_transposed else kernel_of(dtype, inner, outer)
    run_product(kernel, addresses, kinds, sizes)
    return out if out.dtype == dtype else out.to(dtype)


def takes_weight(weight: Tensor) -> bool:
    """Return whether `product` supports a weight [outer, inner].

    The weight must be contiguous, or the transposed view of a contiguous tensor.
    """
    if weight.device.type != "cpu" or weight.dtype not in KINDS:
        return False
    outer, inner = weight.shape
    if weight.is_contiguous():
        return outer % WIDTH == 0 and inner % WIDTH == 0
    transposed = weight.T.is_contiguous() and weight.dtype != torch.float16
    return transposed and outer % OUTER == 0 and inner % WIDTH == 0


def kernel_of(dtype: torch.dtype, inner: int, outer: int) -> TeamJob:
    """Choose the kernel for a product's shape.

    The kernels sum in different orders, so the choice never depends on the number of rows.
    """
    if (
        dtype == torch.bfloat16
        and amx.available()
        and inner % tiled.INNER == 0
        and outer % tiled.OUTER == 0
    ):
        return tiled.multiply_tiled
    if (
        dtype == torch.bfloat16
        and avx512_dot.available()
        and inner % dotted.INNER == 0
        and outer % dotted.OUTER == 0
    ):
        return dotted.multiply_dotted
    return multiply
