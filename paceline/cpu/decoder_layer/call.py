"""Run all steps of a decoder layer in one compiled function.

The CPU packages `linear`, `packed` and `attention` provide the jobs that compute matrix products
and attention. The other steps round to bfloat16 after each operation, as torch does. The output is
bit-identical to that of the layer's modules, run one by one.
"""

from __future__ import annotations

from typing import Any

import numba

from paceline.cpu import simd_f32x8
from paceline.cpu.attention.call import CALL
from paceline.cpu.job_table import run_job
from paceline.cpu.linear.call import PRODUCT_CALL
from paceline.cpu.linear.norms import normalise
from paceline.cpu.memory import BFLOAT16, HALF_BYTES, copy
from paceline.cpu.simd_f32x8 import WIDTH
from paceline.util.compiled import (
    as_pointer,
    compiled,
    inlined,
    load_int64,
    load_uint16,
    record_dtype,
    store_uint16,
    subroutine,
)

_STEP = WIDTH * HALF_BYTES  # bytes in a vector of bfloat16 numbers
_QUERY, _OUTPUT, _GATE, _DOWN, _ATTEND = 0, 3, 4, 6, 7  # indices of the jobs in a layer
NUM_PRODUCTS = _ATTEND
NUM_JOBS = NUM_PRODUCTS + 1  # jobs in a layer


class LayerCall:
    """Arguments of `run_layer`: sizes, and addresses of contiguous bfloat16 tensors."""

    count: int  # Number of columns.
    hidden: int
    heads: int
    key_heads: int
    dim: int  # Size of a head, a multiple of 16.
    inner: int  # Number of outputs of the gate; 0 if the caller computes the feed-forward network.
    norm: int  # Weights of the norm before attention.
    epsilon: float
    inner_norm: int  # Weights of the norm before the feed-forward network.
    inner_epsilon: float
    query_norm: int  # Weights of the norm of each query head, [dim], or 0.
    query_epsilon: float
    key_norm: int
    key_epsilon: float
    cosines: int  # Shape [count, dim].
    sines: int
    written: int  # Rows of the KV cache to write, int64 [key heads, count].
    key_rows: int  # Keys in the KV cache, [rows, dim].
    value_rows: int
    activation: int  # Results of the activation function for all 65,536 bfloat16 numbers.
    jobs: int  # Addresses of function and record, for the seven products and then attention.
    # Memory for the results of each step.
    normed: int  # Shape [count, hidden].
    queries: int  # Shape [count, heads, dim].
    keys: int  # Shape [count, key heads, dim].
    values: int
    attended: int  # Shape [count, heads, dim].
    projected: int  # Shape [count, hidden].
    middle: int  # Shape [count, hidden].
    gate: int  # Shape [count, inner].
    up: int


LAYER_CALL = record_dtype(LayerCall)
_LAYER_BYTES = LAYER_CALL.itemsize
_TAKEN_BY_PRODUCTS = PRODUCT_CALL.fields["taken"][1]
_TAKEN_BY_ATTENTION = CALL.fields["taken"][1]


@subroutine
def run_layer(address: int, states: int, out: int, mailbox: int, number: int) -> None:
    """Compute one decoder layer.

    Args:
        address: Address of the layer's `LayerCall`.
        states: Address of the layer's input, bfloat16 [count, hidden].
        out: Address at which to write the layer's output, bfloat16 [count, hidden].
        mailbox: Address at which the thread team receives its jobs. 0 means no team.
        number: Number of the last job that the team received before this call.
    """
    layer = numba.carray(as_pointer(address), 1, LAYER_CALL)[0]
    count, hidden, kind = layer.count, layer.hidden, BFLOAT16
    width = count * hidden
    normalise(states, layer.norm, layer.normed, kind, count, hidden, layer.epsilon)
    for product in range(_QUERY, _OUTPUT):
        run_job(layer.jobs, product, _TAKEN_BY_PRODUCTS, mailbox, number + product)
    if layer.query_norm:
        _normalise_heads(layer.queries, layer.query_norm, layer.query_epsilon, layer, layer.heads)
        _normalise_heads(layer.keys, layer.key_norm, layer.key_epsilon, layer, layer.key_heads)
    _rotate(layer)
    run_job(layer.jobs, _ATTEND, _TAKEN_BY_ATTENTION, mailbox, number + _OUTPUT)
    number += 1
    run_job(layer.jobs, _OUTPUT, _TAKEN_BY_PRODUCTS, mailbox, number + _OUTPUT)
    if not layer.inner:
        _add(states, layer.projected, out, width)
        return
    _add(states, layer.projected, layer.middle, width)
    normalise(
        layer.middle, layer.inner_norm, layer.normed, kind, count, hidden, layer.inner_epsilon
    )
    for product in range(_GATE, _DOWN):
        run_job(layer.jobs, product, _TAKEN_BY_PRODUCTS, mailbox, number + product)
    _activate(layer)
    run_job(layer.jobs, _DOWN, _TAKEN_BY_PRODUCTS, mailbox, number + _DOWN)
    _add(layer.middle, layer.projected, out, width)


@compiled
def run_layers(
    address: int, num_layers: int, states: int, out: int, mailbox: int, number: int
) -> None:
    """Compute consecutive decoder layers.

    Args:
        address: Address of an array with a `LayerCall` for each layer.
        num_layers: Number of layers.
        states: Address of the first layer's input, bfloat16 [count, hidden].
        out: Address at which to write the last layer's output, bfloat16 [count, hidden].
        mailbox: Address at which the thread team receives its jobs. 0 means no team.
        number: Number of the last job that the team received before this call.
    """
    for _ in range(num_layers):
        run_layer(address, states, out, mailbox, number)
        address += _LAYER_BYTES
        states = out
        number += NUM_JOBS


@inlined
def _normalise_heads(rows: int, weight: int, epsilon: float, layer: LayerCall, heads: int) -> None:
    """Apply an RMS norm to each head of the queries or keys, in place.

    Args:
        rows: Address of the queries or keys.
        weight: Address of the norm's weight, [dim].
        epsilon: Epsilon of the norm.
        layer: Arguments of the layer.
        heads: Number of heads per token.
    """
    normalise(rows, weight, rows, BFLOAT16, layer.count * heads, layer.dim, epsilon)


@inlined
def _rotate(layer: LayerCall) -> None:
    """Apply the rotary embedding, and write the keys and values to the KV cache."""
    row_bytes = layer.dim * HALF_BYTES
    for column in range(layer.count):
        cosines, sines = layer.cosines + column * row_bytes, layer.sines + column * row_bytes
        for head in range(layer.heads):
            query = layer.queries + (column * layer.heads + head) * row_bytes
            _rotate_row(query, query, cosines, sines, row_bytes // 2)
        for head in range(layer.key_heads):
            source = (column * layer.key_heads + head) * row_bytes
            index = load_int64(layer.written + (head * layer.count + column) * 8)
            target = index * row_bytes
            _rotate_row(
                layer.keys + source, layer.key_rows + target, cosines, sines, row_bytes // 2
            )
            copy(layer.values + source, layer.value_rows + target, row_bytes)


@inlined
def _rotate_row(source: int, target: int, cosines: int, sines: int, half: int) -> None:
    """Apply the rotary embedding to one head of one token.

    The function rotates each pair of elements i and i + dim / 2.

    Args:
        source: Address of the head.
        target: Address at which to write the rotated head; may equal `source`.
        cosines: Address of the cosines for the token's position, [dim].
        sines: Address of the sines for the token's position, [dim].
        half: Half the size of the head in bytes.
    """
    for offset in range(0, half, _STEP):
        low = simd_f32x8.load_bfloat16(source + offset)
        high = simd_f32x8.load_bfloat16(source + half + offset)
        first = simd_f32x8.subtract(_times(low, cosines + offset), _times(high, sines + offset))
        second = simd_f32x8.add(
            _times(high, cosines + half + offset), _times(low, sines + half + offset)
        )
        simd_f32x8.store_bfloat16(target + offset, first)
        simd_f32x8.store_bfloat16(target + half + offset, second)


@inlined
def _times(numbers: Any, factors: int) -> Any:
    """Multiply eight numbers by the factors at an address, and round to bfloat16."""
    return simd_f32x8.to_bfloat16(simd_f32x8.multiply(numbers, simd_f32x8.load_bfloat16(factors)))


@inlined
def _activate(layer: LayerCall) -> None:
    """Replace `gate` by activation(gate) * up.

    A table contains the result of the activation function for every bfloat16 number.
    """
    size = layer.count * layer.inner * HALF_BYTES
    for offset in range(0, size, HALF_BYTES):
        bits = load_uint16(layer.gate + offset)
        store_uint16(layer.gate + offset, load_uint16(layer.activation + HALF_BYTES * int(bits)))
    for offset in range(0, size, _STEP):
        active = simd_f32x8.load_bfloat16(layer.gate + offset)
        simd_f32x8.store_bfloat16(layer.gate + offset, _times(active, layer.up + offset))


@inlined
def _add(first: int, second: int, out: int, count: int) -> None:
    """Add two arrays of `count` bfloat16 numbers, and write the sums to `out`."""
    for offset in range(0, count * HALF_BYTES, _STEP):
        left, right = (
            simd_f32x8.load_bfloat16(first + offset),
            simd_f32x8.load_bfloat16(second + offset),
        )
        simd_f32x8.store_bfloat16(out + offset, simd_f32x8.add(left, right))
