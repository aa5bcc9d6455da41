"""Multiply rows by packed weights, and unpack rows of packed weights."""

from __future__ import annotations

import torch
from torch import Tensor

from paceline.backend.block_formats import BlockFormat
from paceline.backend.packed_weight import PackedWeight
from paceline.cpu.linear.call import run_product
from paceline.cpu.linear.dispatch import kernel_of
from paceline.cpu.linear.dotted import multiply_dotted
from paceline.cpu.linear.unpack_call import PART, PART_BYTES
from paceline.cpu.memory import BFLOAT16
from paceline.cpu.packed import unpacking
from paceline.cpu.packed.dotted import multiply_packed
from paceline.cpu.packed.few_rows import few_rows_job
from paceline.cpu.settings import L1_BYTES_OF_SECTION, UNPACKED_GROUP
from paceline.cpu.thread_team import TeamJob


def packed_product(rows: Tensor, weight: PackedWeight, bias: Tensor | None) -> Tensor:
    """Return rows @ weight.T + bias for a packed weight.

    The result is bit-identical to the product with the unpacked weight.

    Args:
        rows: Input rows, bfloat16 [..., inputs], on the CPU.
        weight: Packed weight [outputs, inputs]. Both sizes are multiples of 8.
        bias: Bias [outputs], or None.
    """
    outer, inner = weight.shape
    rows = rows.contiguous()
    out = torch.empty(*rows.shape[:-1], outer, dtype=torch.bfloat16)
    float_bias = None if bias is None else bias.to(torch.float32).contiguous()
    count = rows.numel() // inner
    run_product(
        product_job(weight),
        (
            rows.data_ptr(),
            weight.blocks.data_ptr(),
            0 if float_bias is None else float_bias.data_ptr(),
            out.data_ptr(),
        ),
        (BFLOAT16, BFLOAT16),
        (count, inner, outer),
        packing_of(weight),
    )
    return out


def product_job(weight: PackedWeight) -> TeamJob:
    """Return the kernel that multiplies rows by a packed weight."""
    outer, inner = weight.shape
    kernel = kernel_of(torch.bfloat16, inner, outer)
    return multiply_packed if kernel is multiply_dotted else kernel


def packing_of(weight: PackedWeight) -> tuple[int, ...]:
    """Return the values of the fields in `PACKING`, which describe a packed weight."""
    by_quads, order = product_job(weight) is multiply_packed, weight.order
    unpack = unpacking.quad_job if by_quads else unpacking.row_job
    type_id = weight.block_format.type_id
    return (
        unpack(type_id).address,
        weight.blocks.shape[1],
        _section_parts(weight.block_format, weight.shape[1]),
        0 if order is None else order.data_ptr(),
        few_rows_job(type_id).address if by_quads else 0,
        0,
    )


def _section_parts(block_format: BlockFormat, inner: int) -> int:
    """Return the number of parts (32 numbers each) per row in a section of the weight.

    A section contains these parts for a few rows of the weight. The kernel unpacks one section at a
    time to the L1 cache. All sections have a similar size, and consist of whole blocks.

    Args:
        block_format: Block format of the weight.
        inner: Number of inputs, which is the number of weights in a row.
    """
    num_parts, largest = inner // PART, L1_BYTES_OF_SECTION // (UNPACKED_GROUP * PART_BYTES)
    parts = -(-num_parts // -(-num_parts // largest))
    block_parts = max(1, block_format.numbers // PART)
    return -(-parts // block_parts) * block_parts


def unpack_rows(weight: PackedWeight, row_ids: Tensor | None) -> Tensor:
    """Unpack rows of a packed weight to a bfloat16 tensor [n, inputs].

    Args:
        weight: Packed weight [outputs, inputs]. The number of inputs is a multiple of 32.
        row_ids: Indices of the rows to unpack, int64 [n]. None unpacks all rows.
    Raises:
        IndexError: A row index is out of range.
    """
    order, count = weight.order, len(weight) if row_ids is None else len(row_ids)
    if row_ids is not None and count:
        if int(row_ids.min()) < 0 or int(row_ids.max()) >= len(weight):
            raise IndexError(f"row ids: got {row_ids.tolist()}; expected 0 to {len(weight) - 1}")
        order = row_ids.long().contiguous() if order is None else order[row_ids].contiguous()
    out = torch.empty(count, weight.shape[1], dtype=torch.bfloat16)
    unpacking.row_job(weight.block_format.type_id).run(
        (
            weight.blocks.data_ptr(),
            weight.blocks.shape[1],
            0 if order is None else order.data_ptr(),
            0,
            count,
            weight.shape[1] // PART,
            out.data_ptr(),
            0,
            0,
        ),
        0,
        True,
    )
    return out
