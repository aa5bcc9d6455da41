"""What a forward costs by the roofline model (Marzollo et al. 2024, table 1, figure 3, section 3.2.1)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Peak:
    """What a device can do: FLOP/s in matrix products, and bytes/s of memory traffic."""

    flops: float
    bandwidth: float

    @property
    def ratio(self) -> float:
        """FLOPs that fit into the time one byte takes."""
        return self.flops / self.bandwidth


ASCEND = Peak(280e12, 0.8e12)  # the paper's device, 910B4


@dataclass(frozen=True, slots=True)
class Matmul:
    """Matrix products of one kind: [tokens, inputs] times [inputs, outputs], `count` of them in the model.

    Attributes:
        experts, active: each token goes through `active` of `experts` such matrices; of a dense layer through its only one.
        width: bytes of a weight; None = those of any other number.
    """

    name: str
    inputs: int
    outputs: int
    count: int
    experts: int = 1
    active: int = 1
    width: float | None = None

    def touched(self, tokens: int) -> float:
        """Return how many experts some of the tokens go through, each choosing evenly and for itself: the most on average."""
        return self.experts * (1 - (1 - self.active / self.experts) ** tokens)

    @property
    def weights(self) -> int:
        """Numbers in all of its matrices."""
        return self.inputs * self.outputs * self.experts * self.count


@dataclass(frozen=True, slots=True)
class Work:
    """One operation of a forward: floating-point operations, bytes read and written, and how often it occurs."""

    name: str
    flops: float
    read: float
    written: float
    count: int

    @property
    def intensity(self) -> float:
        """FLOPs per byte."""
        return self.flops / (self.read + self.written)

    def seconds(self, peak: Peak) -> float:
        """Return the seconds of all its occurrences: arithmetic or memory, whichever takes longer."""
        return self.count * max(self.flops / peak.flops, (self.read + self.written) / peak.bandwidth)


@dataclass(frozen=True, slots=True)
class Shapes:
    """The sizes of a model that table 1 asks for.

    Attributes:
        hidden: size of the residual stream. heads, kv_heads, head_size: of attention. width: bytes of a number.
        matmuls: every kind of matrix product, the LM head among them.
        window, windowed: cached tokens that sliding layers read at most, and how many layers they are.
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

    def products(self, batch: int, size: int) -> list[Work]:
        """Return the matrix products of a forward over `size` tokens of each of `batch` sequences."""
        return [self._product(one, batch * size) for one in self.matmuls]

    def _product(self, one: Matmul, tokens: int) -> Work:
        rows, width = tokens * one.active, self.width if one.width is None else one.width
        weights = width * one.touched(tokens) * one.inputs * one.outputs
        read, written = self.width * rows * one.inputs + weights, float(self.width * rows * one.outputs)
        return Work(one.name, 2.0 * rows * one.inputs * one.outputs, read, written, one.count)

    def attention(self, batch: int, size: int, context: int) -> list[Work]:
        """Return the attention over `context` cached tokens and the new ones: of a full layer and of a sliding one, if any.

        A mask has a byte per pair.
        """
        kinds = (("attention", context, self.layers - self.windowed), ("attention (window)", self.window, self.windowed))
        return [self._attention(name, batch, size, min(reach, context), count) for name, reach, count in kinds if count]

    def _attention(self, name: str, batch: int, size: int, context: int, count: int) -> Work:
        flops = 4.0 * batch * size * (size + context) * self.heads * self.head_size
        tokens = 2 * (context + size) * self.kv_heads + size * self.heads
        mask = batch * size * (size + context) if size > 1 else 0
        read = batch * self.head_size * tokens * self.width + mask
        return Work(name, flops, float(read), float(batch * size * self.heads * self.head_size * self.width), count)

    @property
    def cache_bytes(self) -> int:
        """Bytes of the keys and values of one token, in all layers."""
        return 2 * self.layers * self.kv_heads * self.head_size * self.width

    @property
    def weight_bytes(self) -> float:
        """Bytes of the weights of all matrix products, every expert among them."""
        return sum(one.weights * (self.width if one.width is None else one.width) for one in self.matmuls)

    def seconds(self, batch: int, size: int, context: int, peak: Peak) -> tuple[float, float]:
        """Return the seconds of a forward by the roofline: matrix products, and attention."""
        products, attention = self.products(batch, size), self.attention(batch, size, context)
        return sum(one.seconds(peak) for one in products), sum(one.seconds(peak) for one in attention)

    def relative(self, batch: int, size: int, context: int, peak: Peak) -> float:
        """Return the time of a forward over that of plain decoding, by the roofline."""
        return sum(self.seconds(batch, size, context, peak)) / sum(self.seconds(batch, 1, context, peak))


LLAMA_2_7B = Shapes(  # the paper's model
    4096, 32, 32, 32, 128, 2,
    (
        *(Matmul(name, 4096, 4096, 32) for name in ("q_proj", "k_proj", "v_proj", "o_proj")),
        *(Matmul(name, 4096, 11008, 32) for name in ("gate_proj", "up_proj")),
        Matmul("down_proj", 11008, 4096, 32), Matmul("lm_head", 4096, 32000, 1),
    ),
)  # fmt: skip


def free_budget(hidden: int, peak: Peak, width: int = 2) -> float | None:
    """Return the tokens of a forward, b s_q, up to which the products with [hidden, hidden] weights are bound by memory.

    Solves 1 / (width (1 / hidden + 1 / (2 b s_q))) = FLOP/s over bytes/s.

    Args:
        width: bytes of a number.
    Returns:
        None where such products never become bound by arithmetic.
    """
    left = 1 / (width * peak.ratio) - 1 / hidden
    return 1 / (2 * left) if left > 0 else None
