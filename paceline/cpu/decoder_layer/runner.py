"""Prepare the arguments of the compiled `call.run_layer` for each decoder layer."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from paceline.backend.decoder_layer import DecoderLayer, LayerPass
from paceline.backend.packed_weight import PackedWeight
from paceline.cpu.attention.call import CALL
from paceline.cpu.attention.invariant import queries_per_tile
from paceline.cpu.attention.kernel import attend
from paceline.cpu.attention.tiled import attend_tiled, suits
from paceline.cpu.decoder_layer.call import LAYER_CALL, NUM_JOBS, NUM_PRODUCTS, run_layers
from paceline.cpu.job_table import reserve_jobs
from paceline.cpu.linear.call import PACKING, PRODUCT_CALL
from paceline.cpu.linear.dispatch import kernel_of
from paceline.cpu.memory import BFLOAT16, HALF_BYTES
from paceline.cpu.packed.product import packing_of, product_job
from paceline.cpu.settings import MAX_LAYER_ROWS
from paceline.cpu.simd_f32x8 import WIDTH
from paceline.cpu.thread_team import TEAM

_ALL_BITS = 1 << 16  # number of bit patterns of bfloat16 numbers
# Fields of `LayerCall` with the addresses of each product's input and output.
_IN = ("normed", "normed", "normed", "attended", "normed", "normed", "gate")
_OUT = ("queries", "keys", "values", "projected", "gate", "up", "projected")
_ATTENTION_PRODUCTS = 4  # the first four products belong to attention
_NORMS = ("", "inner_", "query_", "key_")  # prefixes in `LayerCall`, as in `DecoderLayer.norms`


class _Shape(NamedTuple):
    """The sizes of a decoder layer.

    Attributes:
        hidden: Number of elements in a hidden state.
        heads: Number of query heads.
        key_heads: Number of key heads.
        dim: Number of elements in a head.
        inner: Number of outputs of the feed-forward network's gate. 0 if the layer's products do
            not include the feed-forward network.
    """

    hidden: int
    heads: int
    key_heads: int
    dim: int
    inner: int

    @staticmethod
    def of(layer: DecoderLayer) -> _Shape | None:
        """Return the sizes of a layer, or None if the kernels do not support its shapes."""
        weights = [product.weight for product in layer.products]
        dim, hidden = layer.head_dim, len(layer.norms[0].weight)
        inner = len(weights[4]) if len(weights) > _ATTENTION_PRODUCTS else 0
        heads, key_heads = len(weights[0]) // dim, len(weights[1]) // dim
        expected = [(heads * dim, hidden), *[(key_heads * dim, hidden)] * 2]
        expected += [(hidden, heads * dim), *[(inner, hidden)] * 2, (hidden, inner)]
        fits = [tuple(weight.shape) for weight in weights] == expected[: len(weights)]
        fits &= all(len(norm.weight) == dim for norm in layer.norms[2:])
        even = dim % (2 * WIDTH) == 0 and hidden % WIDTH == 0 and inner % WIDTH == 0
        return _Shape(hidden, heads, key_heads, dim, inner) if fits and even else None

    def memory(self) -> dict[str, int]:
        """Return the size of each result buffer in `LayerCall`, in elements per row."""
        queries, keys = self.heads * self.dim, self.key_heads * self.dim
        return {
            "normed": self.hidden,
            "queries": queries,
            "keys": keys,
            "values": keys,
            "attended": queries,
            "projected": self.hidden,
            "middle": self.hidden,
            "gate": self.inner,
            "up": self.inner,
        }


class CpuDecoderLayers:
    """Implements `DecoderLayers` with compiled kernels.

    Args:
        layers: Layers of the same shape, in bfloat16.
        shape: Sizes of a layer.
    """

    def __init__(self, layers: Sequence[DecoderLayer], shape: _Shape) -> None:
        self._shape, count = shape, len(layers)
        self._calls = np.zeros(count, dtype=LAYER_CALL)
        self._products = np.zeros((count, NUM_PRODUCTS), dtype=PRODUCT_CALL)
        self._attention = np.zeros(count, dtype=CALL)
        self._jobs = np.zeros((count, NUM_JOBS, 2), dtype=np.int64)
        self._activation: Tensor | None = None  # activation table of the previous layer
        self._held: list[Any] = []  # tensors that must live as long as their stored addresses
        self._biases: list[tuple[Tensor, Tensor]] = []  # biases and their float32 copies
        modules = [module for layer in layers for module in _modules(layer)]
        self._parameters = [module._parameters for module in modules]
        self._weights, self._bias_parameters = zip(*map(_parameters, modules), strict=True)
        # The blocks of packed weights never move.
        self._plain_weights = [
            weight for weight in self._weights if type(weight) is not PackedWeight
        ]
        self._plain_addresses = [weight.data_ptr() for weight in self._plain_weights]
        self._pass: LayerPass | None = None
        self._describe_shape(shape)
        for index, layer in enumerate(layers):
            self._describe(index, layer)
        self._products["following"].flat[:-1] = self._products["weight"].flat[1:]
        self._tiled = suits(BFLOAT16, shape.dim, shape.dim)
        self._jobs[:, NUM_PRODUCTS, 0] = (attend_tiled if self._tiled else attend).address
        for records, first in ((self._products, 0), (self._attention[:, None], NUM_PRODUCTS)):
            starts = records.ctypes.data + np.arange(records.size) * records.dtype.itemsize
            self._jobs[:, first : first + records.shape[1], 1] = starts.reshape(records.shape)
        self._calls["jobs"] = self._jobs.ctypes.data + np.arange(count) * self._jobs[0].nbytes
        itemsize = LAYER_CALL.itemsize
        self._addresses = [self._calls.ctypes.data + index * itemsize for index in range(count)]

    @staticmethod
    def of(layers: Sequence[DecoderLayer]) -> CpuDecoderLayers | None:
        """Return a runner for the layers, or None if the kernels do not support them."""
        shapes = {_Shape.of(layer) for layer in layers}
        shape = shapes.pop() if len(shapes) == 1 else None
        is_half = all(
            parameter is None or parameter.dtype == torch.bfloat16
            for layer in layers
            for module in _modules(layer)
            for parameter in _parameters(module)
        )
        return CpuDecoderLayers(layers, shape) if shape is not None and is_half else None

    def takes_rows(self, count: int) -> bool:
        """Return whether to use this object for a forward pass over `count` rows.

        The rows must fit into the buffers. If torch uses several threads, the calling thread must
        have a team of helper threads (`TEAM`).
        """
        is_shared = torch.get_num_threads() == 1 or TEAM.of_this_thread() is not None
        return count <= MAX_LAYER_ROWS and is_shared

    def has_same_weights(self) -> bool:
        """Return whether the modules' weights are still those that the runner uses."""
        weights = [held["weight"] for held in self._parameters]
        biases = [held.get("bias") for held in self._parameters]
        return (
            all(map(operator.is_, weights, self._weights))
            and all(map(operator.is_, biases, self._bias_parameters))
            and [weight.data_ptr() for weight in self._plain_weights] == self._plain_addresses
        )

    def _describe_shape(self, shape: _Shape) -> None:
        """Set the fields that are the same in all layers, and allocate the buffers."""
        calls, attention = self._calls, self._attention
        for name, size in shape._asdict().items():
            calls[name] = size
        for name, size in shape.memory().items():
            memory = torch.zeros(MAX_LAYER_ROWS * size, dtype=torch.bfloat16)
            self._held.append(memory)
            calls[name] = memory.data_ptr()
        attention["query"], attention["out"] = calls["queries"], calls["attended"]
        attention["query_head"] = shape.dim * HALF_BYTES
        attention["query_column"] = shape.heads * shape.dim * HALF_BYTES
        attention["key_heads"], attention["groups"] = (
            shape.key_heads,
            shape.heads // shape.key_heads,
        )
        attention["dim"] = attention["value_dim"] = shape.dim
        attention["kind"] = BFLOAT16
        products = self._products
        products["kind"] = products["out_kind"] = BFLOAT16
        for number in range(NUM_PRODUCTS):
            products["rows"][:, number] = calls[_IN[number]]
            products["out"][:, number] = calls[_OUT[number]]

    def _describe(self, index: int, layer: DecoderLayer) -> None:
        call = self._calls[index]
        # If the layer does not normalise heads, `query_norm` and `key_norm` stay 0.
        for name, norm, epsilon in zip(_NORMS, layer.norms, layer.epsilons, strict=False):
            call[f"{name}norm"], call[f"{name}epsilon"] = norm.weight.data_ptr(), epsilon
        self._attention[index]["scaling"] = layer.scaling
        for number, module in enumerate(layer.products):
            self._describe_product(self._products[index, number], index, number, module)
        if len(layer.products) == _ATTENTION_PRODUCTS:
            return
        table = _activation_table(layer.activation)
        if self._activation is None or not torch.equal(self._activation, table):
            self._activation = table
            self._held.append(table)
        call["activation"] = self._activation.data_ptr()

    def _describe_product(self, record: Any, index: int, number: int, module: Any) -> None:
        weight, bias = _parameters(module)
        outer, inner = weight.shape
        record["inner"], record["outer"] = inner, outer
        if bias is not None:
            self._biases.append((bias, torch.empty(outer, dtype=torch.float32)))
            record["bias"] = self._biases[-1][1].data_ptr()
        if type(weight) is PackedWeight:
            job = product_job(weight)
            record["weight"] = weight.blocks.data_ptr()
            for name, value in zip(PACKING, packing_of(weight), strict=True):
                record[name] = value
        else:
            job, record["weight"] = kernel_of(torch.bfloat16, inner, outer), weight.data_ptr()
        self._jobs[index, number, 0] = job.address

    def begin(self, current: LayerPass) -> None:
        """Set the fields that depend on the batch, for the next forward pass."""
        self._pass = current
        for bias, numbers in self._biases:
            numbers.copy_(bias)
        shape, count, metadata = self._shape, current.columns, current.metadata
        visible = metadata.visible(current.mask, count)
        self._products["count"] = count
        calls, attention = self._calls, self._attention
        calls["count"], calls["written"] = count, current.written.data_ptr()
        calls["cosines"], calls["sines"] = (angles.data_ptr() for angles in current.angles)
        groups = shape.heads // shape.key_heads
        attention["rows"] = len(metadata.cached)
        attention["columns"], attention["packed"] = visible.columns, visible.packed
        attention["tile"] = queries_per_tile(metadata.keys, groups, visible.columns, self._tiled)
        attention["keys"], attention["run_count"] = metadata.keys, len(visible.runs)
        attention["tail_width"] = metadata.tail.shape[1]
        self._set_stores(current)
        for name, value in zip(("runs", "begin", "starts"), visible.addresses, strict=True):
            attention[name] = value
        for name, value in zip(("cached", "tail", "key_rows"), metadata.addresses, strict=True):
            attention[name] = value

    def _set_stores(self, current: LayerPass) -> None:
        """Set the addresses and strides of each layer's keys and values in the KV cache."""
        first, start = current.seen
        for number, name in enumerate(("key", "value")):
            row, head, step, _ = current.stores[0][number].stride()
            addresses = np.array([stores[number].data_ptr() for stores in current.stores])
            self._calls[f"{name}_rows"] = addresses
            attention = self._attention
            attention[name] = addresses + (first * row + start * step) * HALF_BYTES
            attention[f"{name}_row"] = row * HALF_BYTES
            attention[f"{name}_head"] = head * HALF_BYTES
            attention[f"{name}_stride"] = step * HALF_BYTES

    def run(self, index: int, states: Tensor) -> Tensor:
        """Compute one layer, and write its keys and values to the KV cache.

        Args:
            index: Index of the layer.
            states: Input of the layer, contiguous bfloat16 [1, columns, hidden].
        Returns:
            Output of the layer, in the shape of `states`.
        """
        return self._run(index, 1, states)

    def run_all(self, states: Tensor) -> Tensor:
        """Compute all layers in one call, and write their keys and values to the KV cache.

        Args:
            states: Input of the first layer, contiguous bfloat16 [1, columns, hidden].
        Returns:
            Output of the last layer, in the shape of `states`.
        """
        return self._run(0, len(self._addresses), states)

    def _run(self, first: int, count: int, states: Tensor) -> Tensor:
        out, (mailbox, number) = torch.empty_like(states), reserve_jobs(count * NUM_JOBS)
        address = self._addresses[first]
        run_layers(address, count, states.data_ptr(), out.data_ptr(), mailbox, number)
        return out


def _modules(layer: DecoderLayer) -> tuple[Any, ...]:
    return *layer.norms, *layer.products


def _parameters(module: Any) -> tuple[Any, Any]:
    """Return the weight and the bias (or None) of a module."""
    parameters = module._parameters
    return parameters["weight"], parameters.get("bias")


def _activation_table(activation: Any) -> Tensor:
    """Tabulate an activation function for all bfloat16 numbers.

    Entry i contains the bits of the result for the number with the bits i.
    """
    numbers = torch.arange(_ALL_BITS, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    table: Tensor = activation(numbers).contiguous().view(torch.int16)
    return table
