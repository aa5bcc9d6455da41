"""Compute the cost of a forward pass from the roofline model.

The formulas are those of Marzollo et al. 2024, table 1 and section 3.2.1.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Peak:
    """Peak rates of a device: compute in FLOP/s, and memory traffic in bytes/s."""

    flops: float
    bandwidth: float

    @property
    def ratio(self) -> float:
        """Return the number of FLOPs that the device computes while it moves one byte."""
        return self.flops / self.bandwidth


@dataclass(frozen=True, slots=True)
class Matmul:
    """The matrix products of one kind: [tokens, inputs] times [inputs, outputs].

    Attributes:
        name: Name of the product.
        inputs, outputs: Sizes of a weight matrix.
        count: Number of such products in the model.
        experts: Number of matrices per product; 1 for a dense layer.
        active: Number of matrices that each token uses.
        width: Number of bytes per weight; None uses the model's value.
    """

    name: str
    inputs: int
    outputs: int
    count: int
    experts: int = 1
    active: int = 1
    width: float | None = None

    def touched(self, tokens: int) -> float:
        """Return the expected number of experts that `tokens` tokens use.

        Every token chooses its experts independently and uniformly.
        """
        return self.experts * (1 - (1 - self.active / self.experts) ** tokens)

    @property
    def weights(self) -> int:
        """Return the total number of weights in all matrices of this kind."""
        return self.inputs * self.outputs * self.experts * self.count


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation in a forward pass: FLOPs, bytes, and how often it is performed."""

    name: str
    flops: float
    read: float
    written: float
    count: int

    @property
    def intensity(self) -> float:
        """Return the arithmetic intensity in FLOPs per byte."""
        return self.flops / (self.read + self.written)

    def seconds(self, peak: Peak) -> float:
        """Return the time of the operation in one pass, limited by compute or memory."""
        return self.count * max(
            self.flops / peak.flops, (self.read + self.written) / peak.bandwidth
        )


@dataclass(frozen=True, slots=True)
class Shapes:
    """The dimensions of a model that enter table 1 of the paper.

    Attributes:
        hidden: Size of the residual stream.
        layers: Number of layers.
        heads: Number of attention heads.
        kv_heads: Number of key-value heads.
        head_size: Size of a head.
        width: Number of bytes per value.
        matmuls: All matrix products, including the LM head.
        window: Maximum number of cached tokens that a sliding-attention layer reads.
        windowed: Number of sliding-attention layers.
    """

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    width: int
    matmuls: tuple[Matmul, ...]
    window: int = 0
    windowed: int = 0

    def products(self, batch: int, size: int) -> list[Operation]:
        """Return the matrix products in a forward pass with `size` tokens per request."""
        return [self._product(matmul, batch * size) for matmul in self.matmuls]

    def _product(self, matmul: Matmul, tokens: int) -> Operation:
        rows, width = tokens * matmul.active, self.width if matmul.width is None else matmul.width
        weights = width * matmul.touched(tokens) * matmul.inputs * matmul.outputs
        read, written = (
            self.width * rows * matmul.inputs + weights,
            float(self.width * rows * matmul.outputs),
        )
        return Operation(
            matmul.name, 2.0 * rows * matmul.inputs * matmul.outputs, read, written, matmul.count
        )

    def attention(self, batch: int, size: int, context: int) -> list[Operation]:
        """Return the attention operations of full and of sliding-attention layers.

        A mask takes one byte per pair of query and key.

        Args:
            batch: Number of requests.
            size: Number of query tokens per request.
            context: Number of cached tokens per request.
        """
        kinds = (
            ("attention", context, self.layers - self.windowed),
            ("attention (window)", self.window, self.windowed),
        )
        return [
            self._attention(name, batch, size, min(reach, context), count)
            for name, reach, count in kinds
            if count
        ]

    def _attention(self, name: str, batch: int, size: int, context: int, count: int) -> Operation:
        flops = 4.0 * batch * size * (size + context) * self.heads * self.head_size
        tokens = 2 * (context + size) * self.kv_heads + size * self.heads
        mask = batch * size * (size + context) if size > 1 else 0
        read = batch * self.head_size * tokens * self.width + mask
        return Operation(
            name,
            flops,
            float(read),
            float(batch * size * self.heads * self.head_size * self.width),
            count,
        )

    @property
    def cache_bytes(self) -> int:
        """Return the size of one token's keys and values in all layers, in bytes."""
        return 2 * self.layers * self.kv_heads * self.head_size * self.width

    @property
    def weight_bytes(self) -> float:
        """Return the size of all weight matrices, including all experts, in bytes."""
        return sum(
            matmul.weights * (self.width if matmul.width is None else matmul.width)
            for matmul in self.matmuls
        )

    def seconds(self, batch: int, size: int, context: int, peak: Peak) -> tuple[float, float]:
        """Return the seconds for matrix products and for attention in a forward pass."""
        products, attention = self.products(batch, size), self.attention(batch, size, context)
        return (
            sum(operation.seconds(peak) for operation in products),
            sum(operation.seconds(peak) for operation in attention),
        )

    def relative(self, batch: int, size: int, context: int, peak: Peak) -> float:
        """Return the time of a forward pass relative to plain decoding."""
        return sum(self.seconds(batch, size, context, peak)) / sum(
            self.seconds(batch, 1, context, peak)
        )


def free_budget(hidden: int, peak: Peak, width: int = 2) -> float | None:
    """Return the number of query tokens up to which matrix products are memory-bound.

    The matrices have the size [hidden, hidden]. The number is b s_q, where b is the number of
    requests and s_q the number of query tokens per request. It solves 1 / (width (1 / hidden + 1 /
    (2 b s_q))) = (FLOP/s) / (bytes/s).

    Args:
        hidden: Size of the residual stream.
        peak: Peak rates of the device.
        width: Number of bytes per value.
    Returns:
        The number; None if such products are always memory-bound.
    """
    left = 1 / (width * peak.ratio) - 1 / hidden
    return 1 / (2 * left) if left > 0 else None
