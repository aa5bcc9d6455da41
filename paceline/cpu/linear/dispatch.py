"""Multiply rows by a weight with the compiled kernel for its dtype and shape."""

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
    """Return rows @ weight.T + bias; no row affects another row's result.

    Args:
        rows: Input rows, [..., inputs], on the CPU.
        weight: Weight [outputs, inputs] on the CPU, in the dtype of `rows`. `takes_weight` must
            accept the weight.
        bias: Bias [outputs], or None.
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
    """Return whether `product` supports a weight [outputs, inputs].

    The weight must be contiguous, or the transposed view of a contiguous tensor. Its sizes must be
    multiples of the size of a vector.
    """
    if weight.device.type != "cpu" or weight.dtype not in KINDS:
        return False
    outer, inner = weight.shape
    if weight.is_contiguous():
        return outer % WIDTH == 0 and inner % WIDTH == 0
    transposed = weight.T.is_contiguous() and weight.dtype != torch.float16
    return transposed and outer % OUTER == 0 and inner % WIDTH == 0


def kernel_of(dtype: torch.dtype, inner: int, outer: int) -> TeamJob:
    """Choose the kernel for a product with a contiguous weight.

    The kernels add in different orders, so the choice must not depend on the number of rows.

    Args:
        dtype: Dtype of the rows and the weight.
        inner: Number of inputs.
        outer: Number of outputs.
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
