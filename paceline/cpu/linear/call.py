"""Pass matrix products to compiled kernels, and split them into tasks.

Every kernel first converts the rows to the layout that its instructions require. Each thread then
claims tasks of `TASK` outputs through a shared counter, until no tasks are left. A thread adds the
bias when it writes a task's results.
"""

from __future__ import annotations

from typing import Any

import numba
import torch

from paceline.cpu import simd_f32x8
from paceline.cpu.memory import BFLOAT16, FLOAT_BYTES, HALF_BYTES
from paceline.cpu.settings import MULTIPLY_ADDS_PER_PRODUCT_HELPER, SUMS_PER_ROW
from paceline.cpu.thread_team import TeamJob
from paceline.util.compiled import as_pointer, inlined, record_dtype, subroutine, take_number

TASK = SUMS_PER_ROW  # outputs
SUMS_STRIDE = TASK * FLOAT_BYTES  # bytes from the sums of one row of a task to the next


class ProductCall:
    """The arguments of a matrix product kernel.

    Tensors are contiguous, and sizes are in elements.
    """

    rows: int  # Shape [count, inner].
    weight: int  # Shape [outer, inner].
    bias: int  # Float32 [outer], or 0.
    out: int  # Shape [count, outer].
    kind: int  # Number format of rows and weight, see `memory`.
    out_kind: int  # Number format of `out`, FLOAT32 or BFLOAT16.
    count: int  # Number of rows.
    inner: int  # Number of inputs, a multiple of 8 or of the kernel's `INNER`.
    outer: int  # Number of outputs, a multiple of 8 or of the kernel's `OUTER`.
    taken: int  # Number of tasks that threads have claimed; initially 0.
    # For a packed weight, `weight` is the address of its blocks. Otherwise, these fields are 0.
    unpack: int  # Address of the function that unpacks blocks.
    blocks_row_bytes: int  # Size of a packed row in bytes.
    section_parts: int  # Number of parts in a section, which are unpacked together.
    order: int  # Address of each output's row number in the file, int64; 0 if all are in order.
    multiply_few: int  # Address of the function that multiplies a few rows by a group of outputs.
    following: int  # Address of the blocks that the next product reads; 0 if unknown.


PRODUCT_CALL = record_dtype(ProductCall)
# Fields of `ProductCall` that describe the blocks of a packed weight.
PACKING = ("unpack", "blocks_row_bytes", "section_parts", "order", "multiply_few", "following")
_TAKEN = PRODUCT_CALL.fields["taken"][1]


def run_product(
    job: TeamJob,
    addresses: tuple[int, int, int, int],
    kinds: tuple[int, int],
    sizes: tuple[int, int, int],
    packing: tuple[int, ...] = (0,) * len(PACKING),
) -> None:
    """Compute a matrix product, with helper threads if the product is large.

    Args:
        job: Kernel to run.
        addresses: Addresses of the rows, the weight, the bias (0 for none) and the output.
        kinds: Number format of the rows and the weight, and number format of the output.
        sizes: Numbers of rows, inputs and outputs.
        packing: Values of the fields in `PACKING`, which describe a packed weight. Default: the
            weight is not packed.
    """
    count, inner, outer = sizes
    multiply_adds = count * inner * outer
    helpers = 0
    if multiply_adds >= MULTIPLY_ADDS_PER_PRODUCT_HELPER:
        helpers = min(
            torch.get_num_threads() - 1, multiply_adds // MULTIPLY_ADDS_PER_PRODUCT_HELPER
        )
    job.run((*addresses, *kinds, *sizes, 0, *packing), helpers, outer <= TASK)


@subroutine
def read_call(address: int) -> Any:
    """Return the `ProductCall` at an address."""
    return numba.carray(as_pointer(address), 1, PRODUCT_CALL)[0]


@inlined
def take_task(address: int) -> Any:
    """Claim the next task of the `ProductCall` at an address.

    Returns:
        The first output of the task.
    """
    return take_number(address + _TAKEN) * TASK


@inlined
def write_out(call: ProductCall, sums: int, row: int, count: int, first: int, width: int) -> None:
    """Add the bias to a task's sums, and write the totals to the output tensor.

    Args:
        call: Arguments of the matrix product.
        sums: Address of the sums, float32 [count, TASK].
        row: Index of the first row to write.
        count: Number of rows to write.
        first: Index of the task's first output.
        width: Number of outputs in the task.
    """
    for i in range(count):
        for output in range(0, width, simd_f32x8.WIDTH):
            total = simd_f32x8.load(sums + i * SUMS_STRIDE + output * FLOAT_BYTES)
            if call.bias:
                bias = simd_f32x8.load(call.bias + (first + output) * FLOAT_BYTES)
                total = simd_f32x8.add(total, bias)
            index = (row + i) * call.outer + first + output
            if call.out_kind == BFLOAT16:
                simd_f32x8.store_bfloat16(call.out + index * HALF_BYTES, total)
            else:
                simd_f32x8.store(call.out + index * FLOAT_BYTES, total)
