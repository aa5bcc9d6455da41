"""Compute causal convolutions over each token and its ancestors in a tree.

Each sum starts with the bias. Fused multiply-adds in float32 then add the weighted inputs, from the
oldest to the newest. If the convolution has an activation, SiLU is also computed in float32. The
result is rounded only once, at the end.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir

from paceline.core.tree import IntArray
from paceline.cpu import simd_f32x8
from paceline.cpu.emit import exponential, floats, operation, words
from paceline.cpu.memory import BFLOAT16, FLOAT32, FLOAT_BYTES, HALF_BYTES, load_lanes
from paceline.cpu.recurrence.tree_call import (
    TreeArrays,
    TreeCall,
    counter_of,
    read_record,
    read_tree,
    run_tasks,
)
from paceline.cpu.settings import CHANNELS_PER_TASK
from paceline.cpu.simd_f32x8 import WIDTH, Float32x8
from paceline.cpu.thread_team import TeamJob
from paceline.util.compiled import compiled, inlined, record_dtype


def _silu(builder: Any, x: Any) -> Any:
    """Emit instructions that compute x / (1 + exp(-x)).

    The instructions compute exponentials only of -|x|, which cannot overflow.
    """
    integers = ir.VectorType(ir.IntType(32), WIDTH)
    bits = builder.or_(builder.bitcast(x, integers), words(0x80000000, WIDTH))
    power = exponential(builder, builder.bitcast(bits, x.type))  # exp(-|x|)
    unit = floats(1.0, WIDTH)
    positive = builder.fcmp_unordered(">=", x, floats(0.0, WIDTH))
    upper = builder.select(positive, unit, power)
    return builder.fmul(x, builder.fdiv(upper, builder.fadd(unit, power)))


silu = operation(Float32x8, (Float32x8,), _silu)


class ConvolutionCall(TreeCall):
    """The arguments of a convolution; strides are in bytes, and sizes in elements."""

    rows: int  # Shape [tokens, channels]; the elements of a row are contiguous.
    row_bytes: int  # Distance between consecutive rows.
    kind: int  # Number format of the rows and of `held`, see `memory`.
    held: int  # Contiguous [slots, size - 1, channels].
    weight: int  # Contiguous float32 [size, channels].
    bias: int  # Contiguous float32 [channels], or 0.
    activates: int  # Whether to apply SiLU to the sums.
    out: int  # Contiguous float32 or bfloat16 [tokens, channels].
    out_kind: int
    size: int
    channels: int  # A multiple of 8.
    taken: int  # Number of tasks that threads have claimed; initially 0.


CONVOLUTION_CALL = record_dtype(ConvolutionCall)
_TAKEN = counter_of(CONVOLUTION_CALL)


def _convolve(call_address: int) -> int:
    """Run tasks of a `ConvolutionCall`; return how many this thread ran."""
    call = read_record(call_address, CONVOLUTION_CALL)
    count = (call.channels + CHANNELS_PER_TASK - 1) // CHANNELS_PER_TASK
    inputs = np.empty(call.size, dtype=np.int64)
    counter = call_address + _TAKEN
    return run_tasks(counter, count, _convolve_channels, call, read_tree(call), inputs, inputs)


convolve = TeamJob(_convolve, CONVOLUTION_CALL)


@inlined
def _convolve_channels(
    call: ConvolutionCall, tree: TreeArrays, task: int, inputs: IntArray, _: IntArray
) -> None:
    """Compute the convolution for all tokens, in the channels of one task.

    Args:
        call: Arguments of the convolution.
        tree: Tokens of the forward pass.
        task: Index of the task, which covers `CHANNELS_PER_TASK` channels.
        inputs: Memory for the addresses of one token's inputs, [size].
        _: Second buffer that `run_tasks` passes; unused.
    """
    for request in range(call.requests):
        for token in range(tree.pending[request] + tree.nodes[request]):
            _find_inputs(call, tree, request, token, inputs)
            _convolve_token(call, inputs, tree.columns[request, token], task * CHANNELS_PER_TASK)


@inlined
def _find_inputs(
    call: ConvolutionCall, tree: TreeArrays, request: int, token: int, inputs: IntArray
) -> None:
    """Write the addresses of the inputs that the convolution reads for a token.

    Args:
        call: Arguments of the convolution.
        tree: Tokens of the forward pass.
        request: Index of the request.
        token: Index of the token in the request's row.
        inputs: Output array for the addresses, oldest input first, [size].
    """
    number_bytes = FLOAT_BYTES if call.kind == FLOAT32 else HALF_BYTES
    row, index = token, call.size - 1
    while index >= 0 and row >= 0:
        inputs[index] = call.rows + tree.columns[request, row] * call.row_bytes
        row, index = tree.parents[request, row], index - 1
    last = (tree.slots[request] + 1) * (call.size - 1)
    for distance in range(index + 1):
        inputs[index - distance] = call.held + (last - 1 - distance) * call.channels * number_bytes


@inlined
def _convolve_token(call: ConvolutionCall, inputs: IntArray, column: int, first: int) -> None:
    """Compute the convolution for one token, in the channels of one task.

    Args:
        call: Arguments of the convolution.
        inputs: Addresses of the token's inputs, oldest first, [size].
        column: Index of the token in the forward pass.
        first: First channel of the task.
    """
    number_bytes = FLOAT_BYTES if call.kind == FLOAT32 else HALF_BYTES
    for channel in range(first, min(first + CHANNELS_PER_TASK, call.channels), WIDTH):
        total = simd_f32x8.splat(np.float32(0.0))
        if call.bias:
            total = simd_f32x8.load(call.bias + channel * FLOAT_BYTES)
        for index in range(call.size):
            weight = call.weight + (index * call.channels + channel) * FLOAT_BYTES
            numbers = load_lanes(call.kind, inputs[index] + channel * number_bytes)
            total = simd_f32x8.fused(numbers, simd_f32x8.load(weight), total)
        if call.activates:
            total = silu(total)
        target = column * call.channels + channel
        if call.out_kind == BFLOAT16:
            simd_f32x8.store_bfloat16(call.out + target * HALF_BYTES, total)
        else:
            simd_f32x8.store(call.out + target * FLOAT_BYTES, total)


@compiled
def append_inputs(
    rows: Any, columns: IntArray, starts: IntArray, slots: IntArray, held: Any
) -> None:
    """Append the inputs of each request's path to the request's stored inputs.

    A path consists of the tokens that a commit adds to the request. The convolution reads `size`
    inputs per token, where `size` is its kernel size. Each slot therefore stores the last
    `size` - 1 inputs. The oldest stored inputs make room for the appended ones.

    Args:
        rows: Bytes of all inputs in the forward pass, uint8 [tokens, bytes per row].
        columns: Index in `rows` of each token on a path, for all requests in sequence, [n].
        starts: Index in `columns` of each request's first token, followed by n, [requests + 1].
        slots: Slot of each request, [requests].
        held: Bytes of the stored inputs, oldest first, uint8 [slots, size - 1, bytes per row].
    """
    size = held.shape[1]
    for request in range(len(slots)):
        count = starts[request + 1] - starts[request]
        target = held[slots[request]]
        for row in range(size):
            source = row + count
            if source < size:
                target[row] = target[source]
            else:
                target[row] = rows[columns[starts[request] + source - size]]
