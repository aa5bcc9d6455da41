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
    """

    name: str
    inputs: int
    outputs: int
    count: int


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
    """

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    width: int
    matmuls: tuple[Matmul, ...]

    def products(self, batch: int, size: int) -> list[Operation]:
        """Return the matrix products in a forward pass with `size` tokens per request."""
        return [self._product(matmul, batch * size) for matmul in self.matmuls]

    def _product(self, matmul: Matmul, tokens: int) -> Operation:
        weights = matmul.inputs * matmul.outputs
        read = float(self.width * (tokens * matmul.inputs + weights))
        written = float(self.width * tokens * matmul.outputs)
        return Operation(matmul.name, 2.0 * tokens * weights, read, written, matmul.count)

    def attention(self, batch: int, size: int, context: int) -> Operation:
        """Return the attention of one layer. A mask takes one byte per query and key.

        Args:
            batch: Number of requests.
            size: Number of query tokens per request.
            context: Number of cached tokens per request.
        """
        flops = 4.0 * batch * size * (size + context) * self.heads * self.head_size
        tokens = 2 * (context + size) * self.kv_heads + size * self.heads
        mask = batch * size * (size + context) if size > 1 else 0
        read = batch * self.head_size * tokens * self.width + mask
        written = float(batch * size * self.heads * self.head_size * self.width)
        return Operation("attention", flops, float(read), written, self.layers)

    def seconds(self, batch: int, size: int, context: int, peak: Peak) -> tuple[float, float]:
        """Return the seconds for matrix products and for attention in a forward pass."""
        products = sum(operation.seconds(peak) for operation in self.products(batch, size))
        return products, self.attention(batch, size, context).seconds(peak)

    def relative(self, batch: int, size: int, context: int, peak: Peak) -> float:
        """Return the time of a forward pass relative to plain decoding."""
        plain = sum(self.seconds(batch, 1, context, peak))
        return sum(self.seconds(batch, size, context, peak)) / plain


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
